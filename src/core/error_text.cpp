// SPDX-License-Identifier: Apache-2.0
#include "mica/core/error_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <new>
#include <system_error>

namespace mica {
namespace {

/// Thrown on other ranks in place of a type that core does not know: that type's nearest known base, with its exit status.
template <class E>
class WithExitCode final : public E {
 public:
  WithExitCode(const std::string& text, ExitCode code) : E(text), code_(code) {}
  [[nodiscard]] ExitCode exit_code() const noexcept override { return code_; }

 private:
  ExitCode code_;
};

struct Type {
  char letter;
  bool (*has)(const std::exception& error);
  std::exception_ptr (*made)(const std::string& text, ExitCode code, int num_sharers);
};

template <class E>
std::exception_ptr shared(E error, int num_sharers) {
  error.set_num_sharers(num_sharers);
  return std::make_exception_ptr(error);
}

template <class E>
Type type(char letter) {
  return {letter, [](const std::exception& error) { return dynamic_cast<const E*>(&error) != nullptr; },
          [](const std::string& text, ExitCode code, int num_sharers) {
            const E error(text);
            return error.exit_code() == code ? shared(error, num_sharers) : shared(WithExitCode<E>(text, code), num_sharers);
          }};
}

/// The types of error.hpp, each before its base. The last one serves for all other types.
const std::array kTypes{type<ConfigError>('C'),     type<DamagedCheckpointError>('B'),
                        type<CheckpointError>('K'), type<IoError>('I'),
                        type<MpiError>('M'),        type<CudaError>('U'),
                        type<NcclError>('N'),       type<Hdf5Error>('H'),
                        type<DesyncError>('D'),     type<Error>('E')};

}  // namespace

std::string message_for_user(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "the system refused memory: see `ulimit -v` and vm.overcommit_memory";
  const auto* of_system = dynamic_cast<const std::system_error*>(&error);
  if (of_system != nullptr && of_system->code() == std::errc::resource_unavailable_try_again) {
    return fmt::format("no thread can be started: {}; see `ulimit -u` and `ulimit -v`", error.what());
  }
  return error.what();
}

std::string text_of_error(const std::exception& error) {
  const auto* found = std::ranges::find_if(kTypes, [&](const Type& each) { return each.has(error); });
  const auto* ours = dynamic_cast<const Error*>(&error);
  const ExitCode code = ours != nullptr ? ours->exit_code() : ExitCode::runtime_failure;
  return fmt::format("{}{} {}", (found == kTypes.end() ? kTypes.back() : *found).letter, static_cast<int>(code), message_for_user(error));
}

void throw_error_of(std::string_view text, std::string_view prefix, int num_sharers) {
  invariant(!text.empty(), "the text of an error begins with its type");
  const auto* found = std::ranges::find(kTypes, text[0], &Type::letter);
  invariant(found != kTypes.end(), "the text of an error begins with its type");
  int code = 0;
  const auto [end, error] = std::from_chars(text.data() + 1, text.data() + text.size(), code);
  invariant(error == std::errc() && end != text.data() + text.size() && *end == ' ', "the exit status stands behind an error's type");
  const std::string_view what = text.substr(static_cast<std::size_t>(end + 1 - text.data()));
  std::rethrow_exception(found->made(std::string(prefix) + std::string(what), static_cast<ExitCode>(code), num_sharers));
}

}  // namespace mica
