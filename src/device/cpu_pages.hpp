// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "pages.hpp"

namespace mica::detail {

/// Ordinary memory of the host. Pages are huge ones, because the kernel would fill holes smaller than these again.
/// @throws IoError: the operating system refuses that many addresses
[[nodiscard]] std::unique_ptr<Pages> make_cpu_pages(std::int64_t reserve_bytes);

}  // namespace mica::detail
