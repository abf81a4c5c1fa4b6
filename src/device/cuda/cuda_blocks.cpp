// SPDX-License-Identifier: Apache-2.0
#include "cuda_blocks.hpp"

#include "mica/core/error.hpp"

namespace mica::detail {

std::uintptr_t CudaBlocks::make(std::int64_t bytes) {
  const auto size = static_cast<std::uintptr_t>(bytes);
  const cuda::Driver& driver = memory_.driver();
  CUdeviceptr reserved = 0;
  driver.check(driver.mem_address_reserve(&reserved, size, memory_.granularity(), 0, 0), "cuMemAddressReserve");
  const auto address = static_cast<std::uintptr_t>(reserved);
  const auto handle = memory_.map(address, size);
  if (handle && memory_.allow(address, address + size)) {
    handles_.emplace(address, *handle);
    return address;
  }
  if (handle) memory_.unmap(address, size, *handle);
  static_cast<void>(driver.mem_address_free(address, size));
  return 0;
}

void CudaBlocks::free(std::uintptr_t address, std::int64_t bytes) {
  const auto handle = handles_.extract(address);
  invariant(!handle.empty(), "a block is freed once");
  memory_.unmap(address, static_cast<std::uintptr_t>(bytes), handle.mapped());
  static_cast<void>(memory_.driver().mem_address_free(address, static_cast<std::uintptr_t>(bytes)));
}

}  // namespace mica::detail
