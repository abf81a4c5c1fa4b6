// SPDX-License-Identifier: Apache-2.0
#include "mica/io/quoted_name.hpp"

#include <fmt/format.h>

namespace mica::io {

std::string quoted_name(std::string_view name) {
  constexpr std::size_t kMostChars = 200;
  std::string text = "'";
  for (const char c : name.substr(0, kMostChars)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      text += fmt::format("\\x{:02x}", byte);
    else
      text += c;
  }
  return text + (name.size() > kMostChars ? fmt::format("...' ({} bytes)", name.size()) : "'");
}

}  // namespace mica::io
