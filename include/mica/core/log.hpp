// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace mica {

enum class LogLevel { debug, info, warn, error, off };

/// Where a rank's messages go. Passed down by value; copies share the sinks. Rank 0 prints to the terminal, the others only
/// warnings and errors.
class Logger {
 public:
  /// A logger that drops everything.
  Logger();
  /// @param prefix  printed before each line, e.g. "rank 3"; empty for none.
  static Logger to_stderr(LogLevel level, std::string prefix);

  void write(LogLevel level, std::string_view text) const;

  template <class... Args>
  void debug(fmt::format_string<Args...> f, Args&&... a) const {
    write(LogLevel::debug, fmt::format(f, std::forward<Args>(a)...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> f, Args&&... a) const {
    write(LogLevel::info, fmt::format(f, std::forward<Args>(a)...));
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> f, Args&&... a) const {
    write(LogLevel::warn, fmt::format(f, std::forward<Args>(a)...));
  }

  /// A logger that also writes to this file (log.txt of a run). @throws ConfigError if it cannot be opened.
  [[nodiscard]] Logger with_file(const std::string& path) const;

 private:
  struct Sinks;
  std::shared_ptr<Sinks> sinks_;
};

}  // namespace mica
