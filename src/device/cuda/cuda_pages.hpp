// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "../pages.hpp"

namespace mica::detail {

/// Memory of the calling thread's GPU behind one range of addresses, by the driver's calls for virtual memory: so free
/// memory of any place serves any later block, whatever its size.
[[nodiscard]] std::unique_ptr<Pages> make_cuda_pages();

}  // namespace mica::detail
