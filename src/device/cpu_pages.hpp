// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "pages.hpp"

namespace mica::detail {

constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;

/// Ordinary host memory in huge pages: the kernel would fill smaller holes again.
/// @throws IoError: the operating system refuses that many addresses
[[nodiscard]] std::unique_ptr<Pages> make_cpu_pages(std::int64_t reserve_bytes);

}  // namespace mica::detail
