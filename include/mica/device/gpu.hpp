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
  int index = 0;              ///< as the driver numbers what this process may see
  std::string name;           ///< "NVIDIA H100 80GB HBM3"
  std::string pci_bus_id;     ///< "0000:1b:00.0": the same card has the same id in every process of a node
  int compute_major = 0, compute_minor = 0;
  std::int64_t memory_bytes = 0;
  int driver_version = 0;     ///< as CUDA counts: 13000 is 13.0
};

/// GPUs that this process may see; empty where there is none, no driver or no CUDA in this build.
[[nodiscard]] std::vector<GpuInfo> list_gpus();
/// Why list_gpus() is empty, for error texts: "this build has no CUDA", "no CUDA-capable device is detected", ...
[[nodiscard]] std::string why_no_gpu();

/// Makes this GPU the calling thread's. Every thread that makes or uses what is below calls it first (streams and pools
/// remember their GPU and see to it themselves).  @throws ConfigError: no such GPU
void use_gpu(int index);
/// Bytes of the calling thread's GPU that nobody has taken, neither this process nor another.
[[nodiscard]] std::int64_t free_gpu_memory();

enum class GpuPriority : std::uint8_t {
  normal,
  high,  ///< its kernels start before those of others that are queued already
};
/// A stream of the calling thread's GPU. [Note: GPU streams]
/// It keeps Stream's contract with one difference: submit() runs its task on the host at once, and the task enqueues
/// device work on native() (kernels, copies, library calls). Tasks that are work themselves (an MPI call) have no place
/// here. What such a task throws is the stream's sticky error, as is a launch that the driver refuses.
[[nodiscard]] std::unique_ptr<Stream> make_cuda_stream(std::string name, GpuPriority priority = GpuPriority::normal);

/// Where a GPU's pool has its memory from.
enum class GpuPoolKind : std::uint8_t {
  arena,  ///< one range of addresses that grows by whole pages, cut into blocks
  plain,  ///< a cudaMalloc for every buffer, none used twice, so that compute-sanitizer knows where each tensor ends
};
/// As the environment's MICA_GPU_POOL says: "plain", or "arena", also where it is unset.  @throws ConfigError: something else
[[nodiscard]] GpuPoolKind gpu_pool_kind();

/// Memory of the calling thread's GPU, of gpu_pool_kind(). Stream-ordered and counted exactly as every pool.
/// @throws ConfigError without a GPU
[[nodiscard]] std::unique_ptr<Pool> make_cuda_pool();

/// Host memory that the GPU copies to and from at full speed, without the host waiting (page-locked).
[[nodiscard]] std::unique_ptr<Pool> make_pinned_pool();

}  // namespace mica
