// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/fsdp/device_mesh.hpp"
#include "mica/tensor/openmp.hpp"

namespace mica::fsdp {

/// Beside a compute stream with a thread of its own, the other streams' loops run alone: OpenMP belongs to compute.
[[nodiscard]] inline int side_stream_threads(const DeviceMesh& device_mesh) {
  return device_mesh.streams().mode == StreamMode::threaded ? 1 : openmp_threads();
}

}  // namespace mica::fsdp
