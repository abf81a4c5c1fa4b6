// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <map>

#include <cuda_runtime.h>

#include "mica/device/cuda/check.hpp"
#include "mica/device/gpu.hpp"
#include "mica/tensor/cuda_kernels.hpp"

#include "tested_kernels.hpp"

namespace mica::testing::device {

namespace {

/// Page-locked blocks that were given back, by size: locking takes longer than most tests. Kept until the process ends.
std::multimap<std::size_t, std::byte*>& free_blocks() {
  static std::multimap<std::size_t, std::byte*> blocks;
  return blocks;
}

std::byte* lock(std::size_t size) {
  void* block = nullptr;
  cuda::check(cudaHostAlloc(&block, size, cudaHostAllocDefault), "cudaHostAlloc");
  return static_cast<std::byte*>(block);
}

}  // namespace

bool is_gpu() { return true; }

std::unique_ptr<Pool> make_pool() { return make_cuda_pool(); }
std::unique_ptr<Stream> make_stream(StreamMode) { return make_cuda_stream("test"); }
std::unique_ptr<Kernels> make_kernels(Pool& pool, const Options& options) {
  return make_cuda_kernels(pool, {.use_cudnn = false,
                                  .fuse_epilogues = options.fuse_epilogues,
                                  .f32_logits = options.f32_logits,
                                  .logits_bytes = options.logits_bytes});
}

std::size_t num_guard_bytes() { return gpu_pool_kind() == GpuPoolKind::plain ? 0 : 1; }

std::byte* allocate_shared(std::size_t size) {
  if (gpu_pool_kind() == GpuPoolKind::plain) return lock(size);
  size = std::bit_ceil(size);
  auto& blocks = free_blocks();
  if (const auto found = blocks.find(size); found != blocks.end()) {
    std::byte* block = found->second;
    blocks.erase(found);
    return block;
  }
  return lock(size);
}
void free_shared(std::byte* memory, std::size_t size) noexcept {
  if (gpu_pool_kind() == GpuPoolKind::plain) {
    static_cast<void>(cudaFreeHost(memory));
  } else {
    free_blocks().emplace(std::bit_ceil(size), memory);
  }
}

std::vector<Lane> lanes() {
  return {{StreamMode::inlined, 1, DType::f32}, {StreamMode::inlined, 1, DType::bf16}, {StreamMode::inlined, 1, DType::f16}};
}

}  // namespace mica::testing::device
