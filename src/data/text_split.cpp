// SPDX-License-Identifier: Apache-2.0
#include "text_split.hpp"

#include <algorithm>
#include <cmath>
#include <string>

namespace mica::data {
namespace {

constexpr std::int64_t kMaxSearchBytes = 64 << 10;

bool continues_a_character(char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U; }

/// The end (index after) of the occurrence of `mark` that ends nearest to `target`, the earlier one of two; npos if none.
std::size_t nearest_end(std::string_view text, std::string_view mark, std::size_t target) {
  std::size_t best = std::string_view::npos;
  const auto distance = [&](std::size_t at) { return at > target ? at - target : target - at; };
  for (std::size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark, at + 1)) {
    const std::size_t end = at + mark.size();
    if (best == std::string_view::npos || distance(end) < distance(best)) best = end;
    if (end > target) break;
  }
  return best;
}

}  // namespace

std::int64_t find_split(io::RawFile& file, std::int64_t file_bytes, double val_fraction) {
  if (val_fraction <= 0) return file_bytes;
  const auto bytes = static_cast<double>(file_bytes);
  const std::int64_t target = file_bytes - std::clamp<std::int64_t>(std::llround(val_fraction * bytes), 0, file_bytes);
  const auto reach = std::min(kMaxSearchBytes, static_cast<std::int64_t>(std::min(val_fraction, 1 - val_fraction) * bytes / 2));
  const std::int64_t begin = std::max<std::int64_t>(0, target - std::max<std::int64_t>(reach, 3));
  const std::int64_t end = std::min(file_bytes, target + std::max<std::int64_t>(reach, 1));
  std::string text(static_cast<std::size_t>(end - begin), '\0');
  file.read_at(begin, text.data(), end - begin);

  const auto middle = static_cast<std::size_t>(target - begin);
  for (const std::string_view mark : {"\n\n", "\n"}) {
    const std::size_t at = nearest_end(text, mark, middle);
    if (at == std::string_view::npos) continue;
    const std::int64_t split = begin + static_cast<std::int64_t>(at);
    if (std::abs(split - target) <= reach) return split;
  }
  std::size_t at = middle;
  while (at > 0 && at < text.size() && middle - at < 3 && continues_a_character(text[at])) --at;
  return begin + static_cast<std::int64_t>(at);
}

}  // namespace mica::data
