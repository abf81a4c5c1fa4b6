// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

// CUDA on the CPU, for tests. [Note: CUDA emulation]
// The sources of src/*/cuda are compiled by the C++ compiler against tests/cuda_emulation/include and linked with this
// library (target mica_cuda_emulated) before Mica's own libraries. What CUDA does later happens inside the call that asks
// for it, or, with work_late(), as late as can be and in an order as strange as can be [Note: queues of streams]. A kernel
// runs block by block, a block's threads as fibers that change places only where they meet (barriers, shuffles). What is checked that a GPU
// would not tell: threads that part ways before a barrier or a shuffle end the process with their places; device memory is unreadable for
// the host (a SIGSEGV) but while a kernel, a copy or a library call runs (MICA_CUDA_EMULATION_PROTECT=0 turns it off), and new device
// memory is NaN. What cudaMalloc and cudaHostAlloc give ends where unreadable memory begins, but for the bytes that round its size up to
// MICA_CUDA_EMULATION_ALIGNMENT (256; a power of 2), which may not be written.
// What lacks an order between streams, or with the host, gives wrong values with work_late().
namespace mica::cuda_emulation {

/// GPUs of the process; at first MICA_CUDA_EMULATION_DEVICES (1). With 0, cudaGetDeviceCount is cudaErrorNoDevice.
void set_device_count(int count);
/// Bytes that each GPU has; at first MICA_CUDA_EMULATION_MEMORY (4 GiB). What is allocated stays.
void set_memory_bytes(std::int64_t bytes);
/// Bytes of device memory that are allocated now (2 MiB pages of cuMemCreate, or cudaMalloc), on that GPU.
[[nodiscard]] std::int64_t memory_in_use(int device = 0);
/// Bytes of page-locked host memory that cudaHostAlloc handed out and were not freed.
[[nodiscard]] std::int64_t pinned_in_use();

/// How often the process called that function since the start or reset_calls(). Copies between device and pageable host
/// memory, for which the host waits, also count as "pageable copy".
[[nodiscard]] std::int64_t calls(std::string_view name);
/// Calls that make the host wait for the device: stream, event and device synchronisation, plain cudaMemcpy, pageable
/// copies, cudaFree, cudaFreeHost.
[[nodiscard]] std::int64_t host_waits();
void reset_calls();

/// The call number `after` from now (0: the next one) of that function, by any thread, and the `times` - 1 after it do
/// nothing but return `error`, a cudaError_t, CUresult, cublasStatus_t or ncclResult_t, whichever the function returns.
void fail_next(std::string_view name, int error, int after = 0, int times = 1);

/// From now on work is done as late as can be; `seed` chooses the order, 0: everything at once. At first
/// MICA_CUDA_EMULATION_LATE (0). Streams must be idle.
void work_late(std::uint64_t seed);

/// cublasLtReductionScheme_t's that cublasLtMatmulAlgoGetHeuristic was last allowed.
[[nodiscard]] std::uint32_t allowed_reductions();

// NCCL: ranks are threads of this process, and a collective happens when the last of them comes to it; the streams of the
// others wait (where they work at once, so do the calls), at most 60 s, then the process ends with a text.

/// Buffers that are registered with a communicator now.
[[nodiscard]] std::int64_t registered_now();
/// How many collectives of a rank had what is gathered, or what is added up, in a registered buffer, since the start.
/// Ranks that are not alike in that end the process.
[[nodiscard]] std::int64_t registered_operations();

/// Whether ranks may name the same GPU, which NCCL refuses (ncclInvalidUsage).
void share_devices_between_nccl_ranks(bool allowed);
/// The next operation of that rank, in whichever communicator, is taken and never happens. The calls of all its ranks
/// come back; their streams stay busy until ncclCommAbort.
void hang_next_nccl_operation(int rank);
/// The same, and ncclCommGetAsyncError of that rank's communicator says `error`, an ncclResult_t.
void fail_next_nccl_operation(int rank, int error);
/// A rank waits that long for the others, then the operation never happens, as above. 0: the 60 s.
void set_nccl_patience(std::chrono::milliseconds patience);

}  // namespace mica::cuda_emulation
