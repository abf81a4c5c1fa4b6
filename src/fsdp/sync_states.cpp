// SPDX-License-Identifier: Apache-2.0
#include "sync_states.hpp"

#include "mica/core/rounding.hpp"

namespace mica::fsdp {
namespace {

constexpr std::int64_t kStateAlignmentBytes = 64;

std::int64_t aligned_bytes(const TensorView& state) { return round_up(state.bytes(), kStateAlignmentBytes); }

void broadcast_both(DeviceMesh& device_mesh, TensorView data) {
  device_mesh.mesh().shard().broadcast(device_mesh.compute(), "sync_module_states", data, 0);
  device_mesh.mesh().replicate().broadcast(device_mesh.compute(), "sync_module_states", data, 0);
}

void broadcast_bucket(DeviceMesh& device_mesh, std::span<const TensorView> states) {
  if (states.size() == 1) return broadcast_both(device_mesh, states[0]);
  std::int64_t bytes = 0;
  for (const TensorView& state : states) bytes += aligned_bytes(state);
  const Buffer buffer = device_mesh.pool().allocate(bytes, MemoryRole::communication, device_mesh.compute());
  const TensorView bucket{buffer.data(), Shape{bytes}, DType::u8};
  device_mesh.kernels().fill(device_mesh.compute(), bucket, 0);
  const auto for_each_slot = [&](auto&& copy) {
    std::int64_t begin = 0;
    for (const TensorView& state : states) {
      const TensorView slot = bucket.slice(begin, state.bytes());
      copy(state, TensorView(slot.data, state.shape, state.dtype));
      begin += aligned_bytes(state);
    }
  };
  for_each_slot([&](TensorView state, TensorView slot) { device_mesh.kernels().copy(device_mesh.compute(), state, slot); });
  broadcast_both(device_mesh, bucket);
  for_each_slot([&](TensorView state, TensorView slot) { device_mesh.kernels().copy(device_mesh.compute(), slot, state); });
}

}  // namespace

void broadcast_states(DeviceMesh& device_mesh, std::span<const TensorView> states, std::int64_t bucket_bytes) {
  for (std::size_t first = 0; first < states.size();) {
    std::size_t last = first;
    std::int64_t bytes = 0;
    do {
      bytes += aligned_bytes(states[last]);
      ++last;
    } while (last < states.size() && bytes + aligned_bytes(states[last]) <= bucket_bytes);
    broadcast_bucket(device_mesh, states.subspan(first, last - first));
    first = last;
  }
}

}  // namespace mica::fsdp
