#include <map>

#include "mica/core/error.hpp"
#include "mica/device/cuda/check.hpp"

#include "../last_uses.hpp"
#include "cuda_pool.hpp"

namespace mica::detail {
namespace {

/// The driver's blocks as they are: no byte of another buffer lies near one's end, and none is used again under the same
/// address without the driver's knowledge, which is what a checker of accesses goes by.
class PlainCudaPool final : public CudaPool {
 public:
  PlainCudaPool() = default;
  ~PlainCudaPool() override = default;
  PlainCudaPool(const PlainCudaPool&) = delete;
  PlainCudaPool& operator=(const PlainCudaPool&) = delete;

 protected:
  Taken take(std::int64_t bytes, Stream& /*home*/) override {
    stay_on_gpu();
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, static_cast<std::size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      return {};
    }
    cuda::check(error, "cudaMalloc");
    bytes_[data] = bytes;
    reserved_ += bytes;
    return {data, {}};
  }
  void give(void* data, Stream* /*home*/, std::vector<Event> pending) override {
    const auto block = bytes_.find(data);
    invariant(block != bytes_.end(), "memory given back to the pool that it came from");
    wait_until_over(pending);
    static_cast<void>(cudaFree(data));  // an error here is one of the work before, of which the streams tell
    reserved_ -= block->second;
    bytes_.erase(block);
  }
  void release_free_memory() override {}
  [[nodiscard]] std::int64_t reserved_bytes() const override { return reserved_; }

 private:
  std::map<void*, std::int64_t> bytes_;  // of each block
  std::int64_t reserved_ = 0;
};

}  // namespace

std::unique_ptr<Pool> make_plain_cuda_pool() { return std::make_unique<PlainCudaPool>(); }

}  // namespace mica::detail
