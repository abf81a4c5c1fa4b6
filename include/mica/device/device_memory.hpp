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

 protected:
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = default;
  DeviceMemory& operator=(const DeviceMemory&) = default;
};

/// Where the pool's memory is: the CPU unless it says otherwise.
[[nodiscard]] DeviceKind device_of(const Pool& pool);
/// Where `data` is, as far as this pool's device knows. A CPU knows the host alone.
[[nodiscard]] DeviceKind device_of(const Pool& pool, const void* data);

/// "the CPU", "the GPU".
[[nodiscard]] std::string device_kind_name(DeviceKind kind);

}  // namespace mica
