// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace mica {

/// Exit statuses of every Mica program (docs/design.md, Programs and files).
enum class ExitCode : int {
  done = 0,
  differs = 1,          ///< only `mica-inspect diff` and `verify`
  user_mistake = 2,     ///< config, missing or unreadable file, damaged checkpoint, unwritable folder
  runtime_failure = 3,  ///< disk full while saving, lost rank, hang
  requeue = 75,         ///< stopped on a signal after saving
};

/// Base of every error Mica throws. The text says what was seen, what was expected and what to change.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  [[nodiscard]] virtual ExitCode exit_code() const noexcept { return ExitCode::runtime_failure; }

  /// How many ranks throw this error together, because they agreed on it ([Note: agreement]); 0: this one alone.
  [[nodiscard]] int num_sharers() const noexcept { return num_sharers_; }
  void set_num_sharers(int num_ranks) noexcept { num_sharers_ = num_ranks; }

 private:
  int num_sharers_ = 0;
};

/// The user's mistake: a config value, a missing or unreadable file, an impossible combination.
class ConfigError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] ExitCode exit_code() const noexcept override { return ExitCode::user_mistake; }
};

/// A checkpoint that is damaged or incomplete, or that does not fit the model.
class CheckpointError : public Error {
 public:
  using Error::Error;
  [[nodiscard]] ExitCode exit_code() const noexcept override { return ExitCode::user_mistake; }
};

/// The bytes on the disk are not those that were written, or some are missing. (Other CheckpointErrors: the checkpoint is sound
/// but does not fit.)
class DamagedCheckpointError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// A system call failed at run time (disk full, I/O error).
class IoError : public Error {
 public:
  using Error::Error;
};
class MpiError : public Error {
 public:
  using Error::Error;
};
class CudaError : public Error {
 public:
  using Error::Error;
};
class NcclError : public Error {
 public:
  using Error::Error;
};
class Hdf5Error : public Error {
 public:
  using Error::Error;
};
/// Ranks disagree: execution order, shapes, replica drift.
class DesyncError : public Error {
 public:
  using Error::Error;
};

/// Throws E with the formatted text unless `ok`. For mistakes of callers and users.
template <class E = Error, class... Args>
void require(bool ok, fmt::format_string<Args...> text, Args&&... args) {
  if (!ok) throw E(fmt::format(text, std::forward<Args>(args)...));
}

/// For invariants of Mica itself: unless `ok`, prints the text and the location, then aborts. Active in every build type.
void invariant(bool ok, std::string_view what, std::source_location where = std::source_location::current());

/// errno as text, e.g. "No space left on device".
[[nodiscard]] std::string errno_text(int error_number);

}  // namespace mica
