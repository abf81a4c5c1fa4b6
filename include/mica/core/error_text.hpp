// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "mica/core/error.hpp"

namespace mica {

/// The error's text for a user. For std::bad_alloc and a thread that cannot be started: which limits to look at.
[[nodiscard]] std::string message_for_user(const std::exception& error);

// How a rank's error travels to the others: as a text that carries the error's type and exit status.

/// A letter for the type, the exit status, a space, message_for_user().
[[nodiscard]] std::string text_of_error(const std::exception& error);
/// Throws the error that text_of_error() was given, with `prefix` before its text. A type that core does not know becomes its
/// nearest known base, and keeps its exit status. @param num_sharers  Error::num_sharers()
[[noreturn]] void throw_error_of(std::string_view text, std::string_view prefix, int num_sharers);

}  // namespace mica
