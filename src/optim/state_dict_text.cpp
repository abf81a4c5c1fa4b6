// SPDX-License-Identifier: Apache-2.0
#include "state_dict_text.hpp"

#include <charconv>
#include <string_view>

#include "mica/core/error.hpp"

namespace mica::optim {
namespace {

/// Words of any bytes, each with its length before it.
class WordWriter {
 public:
  void put(std::string_view word) { text_ += fmt::format("{} {}", word.size(), word); }
  void put(double value) { put(fmt::format("{}", value)); }  // reads back as the same bits; "inf" and "nan" too
  void put_count(std::size_t count) { put(std::to_string(count)); }
  [[nodiscard]] std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

class WordReader {
 public:
  explicit WordReader(std::string_view text) : rest_(text) {}

  std::string word() {
    const std::size_t space = rest_.find(' ');
    invariant(space != std::string_view::npos, "a word has its length before it");
    const auto length = number<std::size_t>(rest_.substr(0, space));
    invariant(length <= rest_.size() - space - 1, "a word is as long as its length says");
    const std::string_view word = rest_.substr(space + 1, length);
    rest_.remove_prefix(space + 1 + length);
    return std::string(word);
  }
  double real() { return number<double>(word()); }
  template <class Visit>
  void for_count(const Visit& visit) {
    for (auto left = number<std::size_t>(word()); left > 0; --left) visit();
  }

 private:
  template <class T>
  static T number(std::string_view text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    invariant(error == std::errc{} && end == text.data() + text.size(), "a number is written as it is read");
    return value;
  }

  std::string_view rest_;
};

void put_numbers(WordWriter& writer, const std::map<std::string, double>& numbers) {
  writer.put_count(numbers.size());
  for (const auto& [name, value] : numbers) {
    writer.put(name);
    writer.put(value);
  }
}

std::map<std::string, double> numbers(WordReader& reader) {
  std::map<std::string, double> all;
  reader.for_count([&] {
    const std::string name = reader.word();
    all[name] = reader.real();
  });
  return all;
}

}  // namespace

std::string text_of(const OptimStateDict& dict) {
  WordWriter writer;
  writer.put_count(dict.state.size());
  for (const auto& [key, state] : dict.state) {
    writer.put(std::get<std::string>(key));
    writer.put_count(state.tensors.size());
    for (const auto& [kind, tensor] : state.tensors) writer.put(kind);
    put_numbers(writer, state.scalars);
  }
  writer.put_count(dict.groups.size());
  for (const OptimStateDict::Group& group : dict.groups) {
    writer.put_count(group.parameters.size());
    for (const ParameterKey& key : group.parameters) writer.put(std::get<std::string>(key));
    put_numbers(writer, group.options);
  }
  return std::move(writer).text();
}

OptimStateDict dict_without_tensors(const std::string& text) {
  WordReader reader(text);
  OptimStateDict dict;
  reader.for_count([&] {
    ParameterState& state = dict.state[reader.word()];
    reader.for_count([&] { state.tensors[reader.word()]; });
    state.scalars = numbers(reader);
  });
  reader.for_count([&] {
    OptimStateDict::Group& group = dict.groups.emplace_back();
    reader.for_count([&] { group.parameters.emplace_back(reader.word()); });
    group.options = numbers(reader);
  });
  return dict;
}

}  // namespace mica::optim
