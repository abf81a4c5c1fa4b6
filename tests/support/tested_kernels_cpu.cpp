// SPDX-License-Identifier: Apache-2.0
#include "tested_kernels.hpp"

namespace mica::testing::device {

bool is_gpu() { return false; }

std::unique_ptr<Pool> make_pool() { return make_cpu_pool(); }
std::unique_ptr<Stream> make_stream(StreamMode mode) { return make_cpu_stream("test", mode); }
std::unique_ptr<Kernels> make_kernels(Pool& pool, const Options& options) {
  return make_cpu_kernels(pool, {.use_native_bf16 = options.use_native_bf16, .logits_bytes = options.logits_bytes});
}

std::size_t num_guard_bytes() { return 1; }
std::byte* allocate_shared(std::size_t size) { return new std::byte[size]; }
void free_shared(std::byte* memory, std::size_t) noexcept { delete[] memory; }

std::vector<Lane> lanes() {
  return {{StreamMode::inlined, 1, DType::f32},
          {StreamMode::threaded, 1, DType::bf16},
          {StreamMode::threaded, kManyThreads, DType::f32},
          {StreamMode::inlined, kManyThreads, DType::bf16},
          {StreamMode::inlined, 1, DType::f16},
          {StreamMode::threaded, kManyThreads, DType::f16}};
}

}  // namespace mica::testing::device
