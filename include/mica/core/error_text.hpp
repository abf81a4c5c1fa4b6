#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "mica/core/error.hpp"

namespace mica {

// How one rank's error reaches the others: a text that carries the error's type, and so the exit status.

/// A letter for the type, then what the error says. Never empty.
[[nodiscard]] std::string text_of_error(const std::exception& error);
/// Throws what text_of_error() was made of, with `prefix` before what it says. A type of which core knows nothing
/// arrives as the nearest one that it knows. @param num_sharers  Error::num_sharers()
[[noreturn]] void throw_error_of(std::string_view text, std::string_view prefix, int num_sharers);

}  // namespace mica
