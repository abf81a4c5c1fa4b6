// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "mica/fsdp/device_mesh.hpp"

namespace mica::fsdp {

/// Broadcasts whole tensors in place from rank 0 of the mesh, in order, in buckets of at most bucket_bytes (a larger
/// tensor is sent alone): each bucket over the shard group, then over the replicate group. On the compute stream.
/// @collective over the world, with equal shapes and dtypes
void broadcast_states(DeviceMesh& device_mesh, std::span<const TensorView> states, std::int64_t bucket_bytes);

}  // namespace mica::fsdp
