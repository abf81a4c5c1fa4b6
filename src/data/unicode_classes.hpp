// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to data: Unicode's letters and numbers, as the patterns of tokenizers mean them.

#include <cstdint>
#include <span>

namespace mica::data {

/// Code points first to last, both included.
struct CodeRange {
  std::uint32_t first;
  std::uint32_t last;
};

/// \p{L} and \p{N} of Unicode 16.0, ascending.
[[nodiscard]] std::span<const CodeRange> letter_ranges();
[[nodiscard]] std::span<const CodeRange> number_ranges();

}  // namespace mica::data
