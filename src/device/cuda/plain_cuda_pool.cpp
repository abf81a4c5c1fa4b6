// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <vector>

#include "mica/core/error.hpp"
#include "mica/device/cuda/check.hpp"

#include "../last_uses.hpp"
#include "cuda_pool.hpp"

namespace mica::detail {
namespace {

/// One allocation of the driver per buffer, never reused, so that compute-sanitizer sees accesses past a buffer's end. Freed ones
/// are returned when the driver has no more memory, in trim() and at the end: cudaFree waits for all work of this process on the
/// GPU, and ranks that are its threads may wait for each other there.
class PlainCudaPool final : public CudaPool {
 public:
  PlainCudaPool() = default;
  ~PlainCudaPool() override { drop_freed(); }
  PlainCudaPool(const PlainCudaPool&) = delete;
  PlainCudaPool& operator=(const PlainCudaPool&) = delete;

 protected:
  Taken take(std::int64_t bytes, Stream& /*home*/) override {
    stay_on_gpu();
    void* data = ask(bytes);
    if (data == nullptr && !freed_.empty()) {
      drop_freed();
      data = ask(bytes);
    }
    if (data == nullptr) return {};
    bytes_[data] = bytes;
    reserved_ += bytes;
    return {data, {}};
  }
  void give(void* data, Stream* /*home*/, std::vector<Event> pending) override {
    invariant(bytes_.contains(data), "memory given back to the pool that it came from");
    freed_.push_back({data, std::move(pending)});
  }
  void release_free_memory() override {
    stay_on_gpu();
    drop_freed();
  }
  [[nodiscard]] std::int64_t reserved_bytes() const override { return reserved_; }

 private:
  struct Freed {
    void* data = nullptr;
    std::vector<Event> pending;
  };

  /// Null: there is no more.
  static void* ask(std::int64_t bytes) {
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, static_cast<std::size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      return nullptr;
    }
    cuda::check(error, "cudaMalloc");
    return data;
  }

  void drop_freed() {
    for (const Freed& block : freed_) {
      wait_until_over(block.pending);
      static_cast<void>(cudaFree(block.data));  // an error here is from earlier work, and the streams report it
      const auto known = bytes_.find(block.data);
      reserved_ -= known->second;
      bytes_.erase(known);
    }
    freed_.clear();
  }

  std::map<void*, std::int64_t> bytes_;  // of each block
  std::vector<Freed> freed_;
  std::int64_t reserved_ = 0;
};

}  // namespace

std::unique_ptr<Pool> make_plain_cuda_pool() { return std::make_unique<PlainCudaPool>(); }

}  // namespace mica::detail
