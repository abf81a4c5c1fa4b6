// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mica/tensor/kernels.hpp"

// The device whose kernels the tests of this executable try. The same test sources are linked with tested_kernels_cpu.cpp and
// with tested_kernels_gpu.cpp; the oracle runs on the CPU in either.
namespace mica::testing::device {

[[nodiscard]] bool is_gpu();

[[nodiscard]] std::unique_ptr<Pool> make_pool();
/// @param mode  of a CPU's stream
[[nodiscard]] std::unique_ptr<Stream> make_stream(StreamMode mode);

struct Options {
  bool use_native_bf16 = true;  ///< of a CPU
  std::int64_t logits_bytes = 64 << 20;
  bool fuse_epilogues = false;  ///< of a GPU
  bool f32_logits = true;       ///< of a GPU
};
[[nodiscard]] std::unique_ptr<Kernels> make_kernels(Pool& pool, const Options& options);

/// How many bytes behind a tensor a test has to look after itself. None where the machine does: a GPU's memory is plain
/// (GpuPoolKind) for that, under compute-sanitizer or on the emulation, and what this gives ends where the tensor does.
[[nodiscard]] std::size_t num_guard_bytes();
/// Memory that the host and the device's kernels both read and write: on a GPU page-locked. size > 0.
[[nodiscard]] std::byte* allocate_shared(std::size_t size);
void free_shared(std::byte* memory, std::size_t size) noexcept;

/// How a test's stream runs and on how many OpenMP threads.
struct Lane {
  StreamMode mode;
  int threads;
  DType dtype;
};
/// Those that tests take one after the other.
[[nodiscard]] std::vector<Lane> lanes();

#if defined(__SANITIZE_THREAD__)
inline constexpr int kManyThreads = 1;  // gcc's OpenMP runtime gives false reports
#else
inline constexpr int kManyThreads = 3;
#endif

}  // namespace mica::testing::device
