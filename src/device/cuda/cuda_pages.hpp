// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "../pages.hpp"

namespace mica::detail {

/// In bytes, of a GPU's memory, real or planned: libraries' fastest paths require it.
inline constexpr std::uintptr_t kCudaMallocAlignment = 256;

/// Memory of the calling thread's GPU behind one range of addresses, mapped by the driver's virtual memory calls, so that free
/// memory anywhere in the range can serve a later block of any size.
[[nodiscard]] std::unique_ptr<Pages> make_cuda_pages();

}  // namespace mica::detail
