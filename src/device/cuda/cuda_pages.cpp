#include "cuda_pages.hpp"

#include <map>

#include "mica/device/cuda/check.hpp"
#include "mica/device/cuda/driver.hpp"

namespace mica::detail {
namespace {

/// Mapping a page takes the driver some 100 us whatever its size, and what is resident is counted in pages.
constexpr std::uintptr_t kPage = std::uintptr_t{16} << 20;
constexpr std::uintptr_t kAlignment = 256;  // as cudaMalloc: what libraries want for their fastest paths

class CudaPages final : public Pages {
 public:
  CudaPages() : driver_(cuda::Driver::load()), gpu_(cuda::current_gpu()) {
    std::size_t free = 0, total = 0;
    cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    // Twice the memory: what is cut up in one half is made whole in the other.
    bytes_ = (2 * total + kPage - 1) / kPage * kPage;
    CUdeviceptr base = 0;
    driver_.check(driver_.mem_address_reserve(&base, bytes_, kPage, 0, 0), "cuMemAddressReserve");
    begin_ = static_cast<std::uintptr_t>(base);
    end_ = begin_ + bytes_;
    page_bytes_ = kPage;
    alignment_ = kAlignment;
  }
  ~CudaPages() override {
    for (const auto& [address, handle] : handles_) unmap(address, handle);
    static_cast<void>(driver_.mem_address_free(begin_, bytes_));
  }
  CudaPages(const CudaPages&) = delete;
  CudaPages& operator=(const CudaPages&) = delete;

  bool commit(std::uintptr_t begin, std::uintptr_t end) override {
    for (std::uintptr_t page = begin; page < end; page += kPage) {
      if (map(page)) continue;
      release(begin, page);
      return false;
    }
    CUmemAccessDesc access{};
    access.location = location();
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const CUresult allowed = driver_.mem_set_access(begin, end - begin, &access, 1);
    if (allowed == CUDA_SUCCESS) return true;
    release(begin, end);
    if (allowed != CUDA_ERROR_OUT_OF_MEMORY) driver_.check(allowed, "cuMemSetAccess");
    return false;
  }

  bool release(std::uintptr_t begin, std::uintptr_t end) override {
    for (auto it = handles_.lower_bound(begin); it != handles_.end() && it->first < end; it = handles_.erase(it)) {
      unmap(it->first, it->second);
    }
    return true;
  }

 private:
  [[nodiscard]] CUmemLocation location() const {
    CUmemLocation where{};
    where.type = CU_MEM_LOCATION_TYPE_DEVICE;
    where.id = gpu_;
    return where;
  }

  bool map(std::uintptr_t page) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location();
    CUmemGenericAllocationHandle handle = 0;
    const CUresult made = driver_.mem_create(&handle, kPage, &properties, 0);
    if (made == CUDA_ERROR_OUT_OF_MEMORY) return false;
    driver_.check(made, "cuMemCreate");
    const CUresult mapped = driver_.mem_map(page, kPage, 0, handle, 0);
    if (mapped != CUDA_SUCCESS) {
      static_cast<void>(driver_.mem_release(handle));
      if (mapped != CUDA_ERROR_OUT_OF_MEMORY) driver_.check(mapped, "cuMemMap");
      return false;
    }
    handles_[page] = handle;
    return true;
  }

  void unmap(std::uintptr_t page, CUmemGenericAllocationHandle handle) {
    static_cast<void>(driver_.mem_unmap(page, kPage));
    static_cast<void>(driver_.mem_release(handle));
  }

  cuda::Driver driver_;
  int gpu_;
  std::uintptr_t bytes_ = 0;
  std::map<std::uintptr_t, CUmemGenericAllocationHandle> handles_;  // by page
};

}  // namespace

std::unique_ptr<Pages> make_cuda_pages() { return std::make_unique<CudaPages>(); }

}  // namespace mica::detail
