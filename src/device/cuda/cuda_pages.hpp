// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "../pages.hpp"

namespace mica::detail {

/// Memory of the calling thread's GPU behind one range of addresses, mapped by the driver's virtual memory calls, so that free
/// memory anywhere in the range can serve a later block of any size.
[[nodiscard]] std::unique_ptr<Pages> make_cuda_pages();

}  // namespace mica::detail
