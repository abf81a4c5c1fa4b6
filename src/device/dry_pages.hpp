// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "pages.hpp"

namespace mica::detail {

/// 16 TiB of addresses of its own without memory behind them, in a CPU's pages: to see where blocks would be.
[[nodiscard]] std::unique_ptr<Pages> make_dry_pages();

}  // namespace mica::detail
