// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "mica/core/error.hpp"

// Words of any bytes in one text, each preceded by its length: for a message to other ranks.
namespace mica {

class WordWriter {
 public:
  void put(std::string_view word) { text_ += fmt::format("{} {}", word.size(), word); }
  /// Reads back as the same bits; "inf" and "nan" too.
  void put_number(double value) { put(fmt::format("{}", value)); }
  void put_count(std::size_t count) { put(std::to_string(count)); }
  [[nodiscard]] std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

/// Reads a text that a WordWriter made; any other text is a defect of Mica and aborts.
class WordReader {
 public:
  /// @param text  outlives it
  explicit WordReader(std::string_view text) : rest_(text) {}

  std::string word() {
    const std::size_t space = rest_.find(' ');
    invariant(space != std::string_view::npos, "a word has its length before it");
    const auto length = parse<std::size_t>(rest_.substr(0, space));
    invariant(length <= rest_.size() - space - 1, "a word is as long as its length says");
    const std::string_view word = rest_.substr(space + 1, length);
    rest_.remove_prefix(space + 1 + length);
    return std::string(word);
  }
  template <class T>
  T number() {
    return parse<T>(word());
  }
  /// Reads a count and calls visit() that many times.
  template <class Visit>
  void for_count(const Visit& visit) {
    for (auto left = number<std::size_t>(); left > 0; --left) visit();
  }

 private:
  template <class T>
  static T parse(std::string_view text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    invariant(error == std::errc{} && end == text.data() + text.size(), "a number is written as it is read");
    return value;
  }

  std::string_view rest_;
};

}  // namespace mica
