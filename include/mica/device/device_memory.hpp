#pragma once

#include <string>

#include "mica/device/pool.hpp"

namespace mica {

/// What the pool of another device than the CPU tells beside being a Pool: where memory is.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// Where the pool's memory is.
  [[nodiscard]] virtual DeviceKind device() const = 0;
  /// Where any memory is, the pool's or not, as the device's runtime knows it.
  [[nodiscard]] virtual DeviceKind device_of(const void* data) const = 0;
  /// Copies between the host's memory and the device's, `bytes` from `from` to `to`; the host waits. Any thread, ordered
  /// with no stream: what streams still do with the memory must be over.
  virtual void copy(void* to, const void* from, std::int64_t bytes) const = 0;

 protected:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = default;
  DeviceMemory& operator=(const DeviceMemory&) = default;
};

/// Where the pool's memory is: the CPU unless it says otherwise.
[[nodiscard]] DeviceKind device_of(const Pool& pool);
/// Where `data` is, as far as this pool's device knows. A CPU knows the host alone.
[[nodiscard]] DeviceKind device_of(const Pool& pool, const void* data);

/// Copies bytes between the pool's memory and the host's, either way: DeviceMemory::copy(), or memcpy on a CPU.
void copy_now(const Pool& pool, void* to, const void* from, std::int64_t bytes);

/// "the CPU", "the GPU".
[[nodiscard]] std::string device_kind_name(DeviceKind kind);

}  // namespace mica
