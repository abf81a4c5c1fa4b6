// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "pages.hpp"

namespace mica::detail {

/// Addresses of its own without memory behind them, in pages of 2 MiB: to see where blocks would be.
[[nodiscard]] std::unique_ptr<Pages> make_dry_pages(std::int64_t bytes, std::uintptr_t alignment);

}  // namespace mica::detail
