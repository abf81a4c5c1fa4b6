// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/fsdp/device_mesh.hpp"
#include "mica/tensor/openmp.hpp"

namespace mica::fsdp {

/// OpenMP threads for loops on streams other than compute: 1 if each stream has a host thread of its own, since the OpenMP threads
/// are then compute's.
[[nodiscard]] inline int side_stream_threads(const DeviceMesh& device_mesh) {
  return device_mesh.streams().mode == StreamMode::threaded ? 1 : openmp_threads();
}

}  // namespace mica::fsdp
