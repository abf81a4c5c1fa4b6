// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "mica/core/error.hpp"
#include "mica/device/cuda/check.hpp"
#include "mica/device/gpu.hpp"

#include "../last_uses.hpp"
#include "cuda_stream.hpp"

namespace mica {
namespace {

/// Whole segments of page-locked memory, since locking costs the host milliseconds: kept for reuse, best fit, never cut.
/// Masters and their gradients live as long as the run, and staging buffers come in few sizes.
class PinnedPool final : public Pool {
 public:
  PinnedPool() : gpu_(cuda::current_gpu()) {}
  ~PinnedPool() override { drop_free(); }
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

 protected:
  Taken take(std::int64_t bytes, Stream& /*home*/) override {
    const auto fit = free_.lower_bound(bytes);
    if (fit != free_.end() && fit->first <= 2 * bytes) {
      Segment segment = std::move(fit->second);
      free_.erase(fit);
      used_[segment.data] = segment.bytes;
      return {segment.data, std::move(segment.pending)};
    }
    void* data = lock(bytes);
    if (data == nullptr) {
      drop_free();
      data = lock(bytes);
    }
    if (data == nullptr) return {};
    used_[data] = bytes;
    reserved_ += bytes;
    return {data, {}};
  }
  void give(void* data, Stream* /*home*/, std::vector<Event> pending) override {
    const auto used = used_.find(data);
    invariant(used != used_.end(), "memory given back to the pool that it came from");
    Segment segment{data, used->second, {}};
    for (const Event& event : pending) detail::merge_event(segment.pending, event);
    used_.erase(used);
    free_.emplace(segment.bytes, std::move(segment));
  }
  void release_free_memory() override { drop_free(); }
  [[nodiscard]] Event last_use(Stream& home) override { return detail::record_last_use(home); }
  [[nodiscard]] std::int64_t reserved_bytes() const override { return reserved_; }

 private:
  struct Segment {
    void* data = nullptr;
    std::int64_t bytes = 0;
    std::vector<Event> pending;
  };

  [[nodiscard]] void* lock(std::int64_t bytes) const {
    cuda::stay_on(gpu_);
    void* data = nullptr;
    const cudaError_t error = cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      return nullptr;
    }
    cuda::check(error, "cudaHostAlloc");
    return data;
  }

  void drop_free() {
    for (auto& [bytes, segment] : free_) {
      detail::wait_until_over(segment.pending);
      static_cast<void>(cudaFreeHost(segment.data));
      reserved_ -= bytes;
    }
    free_.clear();
  }

  int gpu_;
  std::multimap<std::int64_t, Segment> free_;  // by bytes
  std::map<void*, std::int64_t> used_;
  std::int64_t reserved_ = 0;
};

}  // namespace

std::unique_ptr<Pool> make_pinned_pool() {
  require<ConfigError>(!list_gpus().empty(), "no GPU can be used: {}", why_no_gpu());
  return std::make_unique<PinnedPool>();
}

}  // namespace mica
