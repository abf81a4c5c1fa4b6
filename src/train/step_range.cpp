// SPDX-License-Identifier: Apache-2.0
#include <charconv>

#include "mica/train/step_trace.hpp"

namespace mica::train {

std::optional<StepRange> parse_steps(const std::string& text) {
  StepRange range;
  const char* end = text.data() + text.size();
  const auto [dash, error] = std::from_chars(text.data(), end, range.first);
  if (error != std::errc{} || range.first < 1) return std::nullopt;
  range.last = range.first;
  if (dash == end) return range;
  const auto [rest, last_error] = std::from_chars(dash + 1, end, range.last);
  if (*dash != '-' || last_error != std::errc{} || rest != end || range.last < range.first) return std::nullopt;
  return range;
}

}  // namespace mica::train
