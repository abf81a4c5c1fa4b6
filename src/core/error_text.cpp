// SPDX-License-Identifier: Apache-2.0
#include "mica/core/error_text.hpp"

#include <algorithm>
#include <array>

namespace mica {
namespace {

struct Type {
  char letter;
  bool (*has)(const std::exception& error);
  std::exception_ptr (*made)(const std::string& text, int num_sharers);
};

template <class E>
Type type(char letter) {
  return {letter, [](const std::exception& error) { return dynamic_cast<const E*>(&error) != nullptr; },
          [](const std::string& text, int num_sharers) {
            E error(text);
            error.set_num_sharers(num_sharers);
            return std::make_exception_ptr(error);
          }};
}

/// Those of error.hpp; a type comes before its base. The last one is everything else's.
const std::array kTypes{type<ConfigError>('C'),     type<DamagedCheckpointError>('B'),
                        type<CheckpointError>('K'), type<IoError>('I'),
                        type<MpiError>('M'),        type<CudaError>('U'),
                        type<NcclError>('N'),       type<Hdf5Error>('H'),
                        type<DesyncError>('D'),     type<Error>('E')};

}  // namespace

std::string text_of_error(const std::exception& error) {
  const auto* found = std::ranges::find_if(kTypes, [&](const Type& each) { return each.has(error); });
  return (found == kTypes.end() ? kTypes.back() : *found).letter + std::string(error.what());
}

void throw_error_of(std::string_view text, std::string_view prefix, int num_sharers) {
  invariant(!text.empty(), "the text of an error begins with its type");
  const auto* found = std::ranges::find(kTypes, text[0], &Type::letter);
  invariant(found != kTypes.end(), "the text of an error begins with its type");
  std::rethrow_exception(found->made(std::string(prefix) + std::string(text.substr(1)), num_sharers));
}

}  // namespace mica
