// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "api.hpp"
#include "block.hpp"
#include "memory.hpp"
#include "streams.hpp"

namespace mica::cuda_emulation {

namespace {

constexpr unsigned kMostBlocks = 65535;  // in y and z
constexpr unsigned kMostDepth = 64;      // of a block, in z

bool is_valid(const cudaLaunchConfig_t& config) {
  const dim3 grid = config.gridDim;
  const dim3 block = config.blockDim;
  const auto threads = std::uint64_t{block.x} * block.y * block.z;
  return threads > 0 && threads <= Block::kMostThreads && block.z <= kMostDepth && grid.x > 0 && grid.x <= 0x7fffffffU && grid.y > 0 &&
         grid.y <= kMostBlocks && grid.z > 0 && grid.z <= kMostBlocks && config.dynamicSmemBytes == 0;  // not emulated
}

}  // namespace

cudaError_t run_kernel(const cudaLaunchConfig_t& config, const Launch& launch) {
  MICA_EMULATED_ENTER(cudaLaunchKernelEx);
  if (device_count() == 0) return failed(cudaErrorNoDevice);
  if (!is_valid(config)) return failed(cudaErrorInvalidConfiguration);
  if (!is_stream(config.stream) || device_of(config.stream) != current_device()) {
    return failed(cudaErrorInvalidResourceHandle);
  }
  enqueue_action(config.stream, [grid = config.gridDim, block_dim = config.blockDim, launch] {
    const DeviceWork work;
    gridDim = grid;
    blockDim = block_dim;
    Block& block = Block::current();
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z) {
      for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) block.run(launch);
      }
    }
    block.check_stacks();
  });
  return cudaSuccess;
}

}  // namespace mica::cuda_emulation
