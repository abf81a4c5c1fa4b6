#include <limits>

#include "mica/core/error.hpp"
#include "mica/device/cuda/check.hpp"
#include "mica/device/device_memory.hpp"
#include "mica/device/gpu.hpp"

#include "../arena.hpp"
#include "cuda_pages.hpp"

namespace mica {
namespace {

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

/// Memory stays with the pool once it has it, since taking it from the driver and giving it back stops the host (and may
/// stop the device): only when no more is to be had, what is free elsewhere in the range is given back first.
class CudaPool final : public Pool, public DeviceMemory {
 public:
  CudaPool() : gpu_(cuda::current_gpu()), arena_(detail::make_cuda_pages()) {}
  ~CudaPool() override = default;
  CudaPool(const CudaPool&) = delete;
  CudaPool& operator=(const CudaPool&) = delete;

  [[nodiscard]] DeviceKind device() const override { return DeviceKind::cuda; }
  [[nodiscard]] DeviceKind device_of(const void* data) const override {
    if (arena_.contains(reinterpret_cast<std::uintptr_t>(data))) return DeviceKind::cuda;
    cudaPointerAttributes attributes{};
    cuda::check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
    return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged ? DeviceKind::cuda : DeviceKind::cpu;
  }
  void copy(void* to, const void* from, std::int64_t bytes) const override {
    cuda::stay_on(gpu_);
    cuda::check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault), "cudaMemcpy");
    // From pageable memory it may come back before the bytes are there, and Mica's streams do not wait for this one.
    cuda::check(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");
  }

 protected:
  Taken take(std::int64_t bytes, Stream& home) override {
    cuda::stay_on(gpu_);
    detail::Arena::Taken taken = arena_.take(bytes, home);
    if (taken.address == 0) return {};
    if (arena_.commit(taken.address) || (arena_.release(arena_.not_resident_bytes_of(taken.address)) > 0 && arena_.commit(taken.address))) {
      return {pointer(taken.address), std::move(taken.pending)};
    }
    arena_.give(taken.address, nullptr, std::move(taken.pending));
    return {};
  }
  void give(void* data, Stream* home, std::vector<Event> pending) override {
    arena_.give(reinterpret_cast<std::uintptr_t>(data), home, std::move(pending));
  }
  void release_free_memory() override {
    cuda::stay_on(gpu_);
    arena_.release(std::numeric_limits<std::int64_t>::max());
  }
  [[nodiscard]] std::int64_t reserved_bytes() const override { return arena_.resident_bytes(); }
  void fill_bytes(Stream& home, void* data, std::int64_t bytes, unsigned char byte) override {
    home.submit("poison", {writes(data, bytes)}, [=, stream = cuda::native(home)] {
      cuda::check(cudaMemsetAsync(data, byte, static_cast<std::size_t>(bytes), stream), "cudaMemsetAsync");
    });
  }

 private:
  int gpu_;
  detail::Arena arena_;
};

}  // namespace

std::unique_ptr<Pool> make_cuda_pool() {
  require<ConfigError>(!list_gpus().empty(), "no GPU can be used: {}", why_no_gpu());
  return std::make_unique<CudaPool>();
}

}  // namespace mica
