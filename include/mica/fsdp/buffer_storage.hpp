// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mica/fsdp/device_mesh.hpp"
#include "mica/nn/module.hpp"

namespace mica::fsdp {

/// The storage of a root's module buffers (docs/parity.md D6). Never sharded: whole on every rank, in the buffer's own dtype
/// until the first forward, then in buffer_dtype. Integer buffers keep their dtype.
class BufferStorage {
 public:
  struct Entry {
    std::string full_name;
    nn::ModuleBuffer* buffer;
    DType compute_dtype;  ///< dtype in a forward: the innermost owning unit's buffer_dtype, or the buffer's own
    Buffer storage;
  };

  explicit BufferStorage(DeviceMesh& device_mesh) : device_mesh_(device_mesh) {}
  ~BufferStorage();
  BufferStorage(const BufferStorage&) = delete;
  BufferStorage& operator=(const BufferStorage&) = delete;

  /// @param buffer_dtype  of the innermost unit around the buffer's module.
  /// @throws ConfigError if a floating-point buffer cannot be cast to it.
  void add(std::string full_name, nn::ModuleBuffer& buffer, std::optional<DType> buffer_dtype);
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] DeviceMesh& device_mesh() const { return device_mesh_; }

  /// Gives every buffer storage and its initial value; buffers that have data keep their values.
  void initialize(std::uint64_t seed);
  /// Before a forward, on the compute stream: casts buffers whose dtype differs from that forward's.
  void cast_for_forward(bool full_precision);

 private:
  void move_to(Entry& entry, DType dtype);

  DeviceMesh& device_mesh_;
  std::vector<Entry> entries_;
};

}  // namespace mica::fsdp
