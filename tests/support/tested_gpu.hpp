// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/comm/gpu_groups.hpp"
#include "mica/device/gpu.hpp"
#include "mica/tensor/cuda_kernels.hpp"

#include "support/tested_device.hpp"

namespace mica::testing {

/// The calling thread's GPU. Its group is for the host's memory: below are those of GPUs.
inline TestedDevice tested_gpu() {
  TestedDevice device;
  device.make_pool = make_cuda_pool;
  device.make_kernels = [](Pool& pool) { return make_cuda_kernels(pool); };
  device.make_stream = [](std::string name, StreamMode) { return make_cuda_stream(std::move(name)); };
  return device;
}

/// A GPU that all ranks share: collectives go by way of the host.
inline TestedDevice staged_gpu() {
  TestedDevice device = tested_gpu();
  const std::shared_ptr<Pool> pinned = make_pinned_pool();
  device.make_group = [pinned](std::unique_ptr<ProcessGroup> host) { return make_staged_group(std::move(host), *pinned); };
  return device;
}

/// A GPU of each rank's own.
inline TestedDevice nccl_gpu() {
  TestedDevice device = tested_gpu();
  device.make_group = [](std::unique_ptr<ProcessGroup> host) { return make_nccl_group(std::move(host), {}); };
  return device;
}

}  // namespace mica::testing
