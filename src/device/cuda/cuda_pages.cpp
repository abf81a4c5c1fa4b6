// SPDX-License-Identifier: Apache-2.0
#include "cuda_pages.hpp"

#include <map>

#include "mica/core/rounding.hpp"
#include "mica/device/cuda/check.hpp"

#include "physical_memory.hpp"

namespace mica::detail {
namespace {

/// Mapping a page takes the driver some 100 us whatever its size, and resident memory is counted in pages.
constexpr std::uintptr_t kPage = std::uintptr_t{16} << 20;

class CudaPages final : public Pages {
 public:
  CudaPages() {
    std::size_t free = 0, total = 0;
    cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    // Twice the memory: what is cut up in one half is made whole in the other.
    bytes_ = round_up(2 * total, kPage);
    CUdeviceptr base = 0;
    const cuda::Driver& driver = memory_.driver();
    driver.check(driver.mem_address_reserve(&base, bytes_, kPage, 0, 0), "cuMemAddressReserve");
    begin_ = static_cast<std::uintptr_t>(base);
    end_ = begin_ + bytes_;
    page_bytes_ = kPage;
    alignment_ = kCudaMallocAlignment;
  }
  ~CudaPages() override {
    release(begin_, end_);
    static_cast<void>(memory_.driver().mem_address_free(begin_, bytes_));
  }
  CudaPages(const CudaPages&) = delete;
  CudaPages& operator=(const CudaPages&) = delete;

  bool commit(std::uintptr_t begin, std::uintptr_t end) override {
    for (std::uintptr_t page = begin; page < end; page += kPage) {
      if (const auto handle = memory_.map(page, kPage)) {
        handles_[page] = *handle;
        continue;
      }
      release(begin, page);
      return false;
    }
    if (memory_.allow(begin, end)) return true;
    release(begin, end);
    return false;
  }

  bool release(std::uintptr_t begin, std::uintptr_t end) override {
    for (auto it = handles_.lower_bound(begin); it != handles_.end() && it->first < end; it = handles_.erase(it)) {
      memory_.unmap(it->first, kPage, it->second);
    }
    return true;
  }

 private:
  PhysicalMemory memory_;
  std::uintptr_t bytes_ = 0;
  std::map<std::uintptr_t, CUmemGenericAllocationHandle> handles_;  // by page
};

}  // namespace

std::unique_ptr<Pages> make_cuda_pages() { return std::make_unique<CudaPages>(); }

}  // namespace mica::detail
