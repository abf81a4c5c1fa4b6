// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mica/device/pool.hpp"
#include "mica/device/stream.hpp"

namespace mica {

/// Whether this build has CUDA.
[[nodiscard]] bool has_cuda();
/// "13.0", or "not built in".
[[nodiscard]] std::string cuda_version_text();

struct GpuInfo {
  int index = 0;           ///< the driver's number among those visible to this process
  std::string name;        ///< "NVIDIA H100 80GB HBM3"
  std::string pci_bus_id;  ///< "0000:1b:00.0": the same card has the same id in every process of a node
  int compute_major = 0, compute_minor = 0;
  std::int64_t memory_bytes = 0;
  int driver_version = 0;  ///< in CUDA's form: 13000 is 13.0
};

/// GPUs visible to this process; empty if there is none, no driver, or no CUDA in this build.
[[nodiscard]] std::vector<GpuInfo> list_gpus();
/// Why list_gpus() is empty, for error texts: "this build has no CUDA", "no CUDA-capable device is detected", ...
[[nodiscard]] std::string why_no_gpu();

/// Makes this GPU the calling thread's current one. Every thread that creates or uses what is declared below calls it first
/// (streams and pools remember their GPU and select it themselves).  @throws ConfigError: no such GPU
void use_gpu(int index);
/// Bytes of the calling thread's GPU that no process has allocated.
[[nodiscard]] std::int64_t free_gpu_memory();

enum class GpuPriority : std::uint8_t {
  normal,
  high,  ///< its kernels start before kernels of other streams that are already queued
};
/// A stream on the calling thread's GPU. [Note: GPU streams]
/// It keeps Stream's contract with one difference: submit() runs its task on the host at once, and the task enqueues device
/// work on native() (kernels, copies, library calls). Tasks that do the work themselves (an MPI call) do not belong here. An
/// exception of a task, or a launch that the driver refuses, is the stream's sticky error.
[[nodiscard]] std::unique_ptr<Stream> make_cuda_stream(std::string name, GpuPriority priority = GpuPriority::normal);

/// How a GPU's pool gets its memory.
enum class GpuPoolKind : std::uint8_t {
  arena,  ///< one range of addresses that grows by whole pages, cut into blocks
  plain,  ///< one cudaMalloc per buffer, never reused, so that compute-sanitizer sees out-of-bounds accesses
};
/// From MICA_GPU_POOL in the environment: "plain" or "arena" (the default). @throws ConfigError for other values.
[[nodiscard]] GpuPoolKind gpu_pool_kind();

/// Memory of the calling thread's GPU, of the kind gpu_pool_kind(). Stream-ordered and exactly counted, like every pool.
/// @throws ConfigError without a GPU
[[nodiscard]] std::unique_ptr<Pool> make_cuda_pool();

/// Page-locked host memory, to and from which the GPU copies at full speed and without blocking the host.
[[nodiscard]] std::unique_ptr<Pool> make_pinned_pool();

}  // namespace mica
