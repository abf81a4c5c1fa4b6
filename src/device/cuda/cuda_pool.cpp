// SPDX-License-Identifier: Apache-2.0
#include "cuda_pool.hpp"

#include "mica/core/error.hpp"
#include "mica/device/cuda/check.hpp"
#include "mica/device/gpu.hpp"

namespace mica {
namespace detail {

CudaPool::CudaPool() : gpu_(cuda::current_gpu()) {}

void CudaPool::stay_on_gpu() const { cuda::stay_on(gpu_); }

DeviceKind CudaPool::device_of(const void* data) const {
  cudaPointerAttributes attributes{};
  cuda::check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged ? DeviceKind::cuda : DeviceKind::cpu;
}

void CudaPool::copy(void* to, const void* from, std::int64_t bytes) const {
  stay_on_gpu();
  cuda::check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault), "cudaMemcpy");
  // From pageable memory the call may return before the bytes have arrived, and Mica's streams do not wait for this one.
  cuda::check(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");
}

void CudaPool::fill_bytes(Stream& home, void* data, std::int64_t bytes, unsigned char byte) {
  home.submit("poison", {writes(data, bytes)}, [=, stream = cuda::native(home)] {
    cuda::check(cudaMemsetAsync(data, byte, static_cast<std::size_t>(bytes), stream), "cudaMemsetAsync");
  });
}

}  // namespace detail

std::unique_ptr<Pool> make_cuda_pool() {
  require<ConfigError>(!list_gpus().empty(), "no GPU can be used: {}", why_no_gpu());
  return gpu_pool_kind() == GpuPoolKind::plain ? detail::make_plain_cuda_pool() : detail::make_arena_cuda_pool();
}

}  // namespace mica
