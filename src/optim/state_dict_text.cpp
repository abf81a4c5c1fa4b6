// SPDX-License-Identifier: Apache-2.0
#include "state_dict_text.hpp"

#include "mica/core/word_text.hpp"

namespace mica::optim {
namespace {

void put_numbers(WordWriter& writer, const std::map<std::string, double>& numbers) {
  writer.put_count(numbers.size());
  for (const auto& [name, value] : numbers) {
    writer.put(name);
    writer.put_number(value);
  }
}

std::map<std::string, double> numbers(WordReader& reader) {
  std::map<std::string, double> all;
  reader.for_count([&] {
    const std::string name = reader.word();
    all[name] = reader.number<double>();
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
