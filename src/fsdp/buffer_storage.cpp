// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/buffer_storage.hpp"

#include <utility>

#include "mica/nn/init.hpp"
#include "mica/tensor/host_math.hpp"

namespace mica::fsdp {

BufferStorage::~BufferStorage() {
  for (Entry& entry : entries_) {
    if (entry.storage) entry.buffer->data = {};
  }
}

void BufferStorage::add(std::string full_name, nn::ModuleBuffer& buffer, std::optional<DType> buffer_dtype) {
  DType compute_dtype = buffer.dtype;
  if (buffer_dtype && is_floating(buffer.dtype)) {
    compute_dtype = *buffer_dtype;
    require<ConfigError>(can_convert(buffer.dtype, compute_dtype),
                         "buffer {} of dtype {} cannot be cast to buffer_dtype {}: only fp32, bf16 and fp16 are cast; give "
                         "its module a unit of its own without buffer_dtype",
                         full_name, dtype_name(buffer.dtype), dtype_name(compute_dtype));
  }
  entries_.push_back({std::move(full_name), &buffer, compute_dtype, {}});
}

void BufferStorage::initialize(std::uint64_t seed) {
  for (Entry& entry : entries_) {
    nn::ModuleBuffer& buffer = *entry.buffer;
    const bool is_given = static_cast<bool>(buffer.data);
    require<ConfigError>(!is_given || buffer.data.shape == buffer.shape, "buffer {} has data of shape {}, expected {}", entry.full_name,
                         buffer.data.shape.to_string(), buffer.shape.to_string());
    if (is_given && !entry.storage) {
      move_to(entry, buffer.dtype);
      continue;
    }
    buffer.data = {};
    move_to(entry, buffer.dtype);
    nn::fill_initial(device_mesh_.kernels(), device_mesh_.compute(), buffer.init, entry.full_name, seed, 0, buffer.data);
  }
}

void BufferStorage::cast_for_forward(bool full_precision) {
  for (Entry& entry : entries_) {
    const DType dtype = full_precision ? entry.buffer->dtype : entry.compute_dtype;
    if (entry.storage && entry.buffer->data.dtype != dtype) move_to(entry, dtype);
  }
}

/// Moves the buffer to new storage in `dtype`, with its values.
void BufferStorage::move_to(Entry& entry, DType dtype) {
  nn::ModuleBuffer& buffer = *entry.buffer;
  Stream& compute = device_mesh_.compute();
  Buffer storage = device_mesh_.pool().allocate(buffer.shape.numel() * dtype_bytes(dtype), MemoryRole::module_buffer, compute);
  const TensorView moved{storage.data(), buffer.shape, dtype};
  if (buffer.data) device_mesh_.kernels().copy(compute, buffer.data, moved);
  buffer.data = moved;
  entry.storage = std::move(storage);
}

}  // namespace mica::fsdp
