// SPDX-License-Identifier: Apache-2.0
#include "figures.hpp"

#include <iterator>

#include <fmt/format.h>

namespace mica::checkpoint {

std::string bytes_text(std::int64_t bytes) {
  constexpr std::string_view kUnits[] = {"kB", "MB", "GB", "TB", "PB"};
  if (bytes < 1000) return fmt::format("{} bytes", bytes);
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (value /= 1000; value >= 999.995 && unit + 1 < std::size(kUnits); value /= 1000) ++unit;
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string grouped(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string count_text(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", grouped(count), what, count == 1 ? "" : "s");
}

}  // namespace mica::checkpoint
