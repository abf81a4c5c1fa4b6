// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace mica::checkpoint {

/// A progress bar on one line, updated at most ten times a second and erased at the end.
class ProgressLine {
 public:
  /// @param out  null: nothing is drawn.  @param what  "verifying".
  ProgressLine(std::ostream* out, std::string what) : out_(out), what_(std::move(what)) {}
  ~ProgressLine() {
    if (was_drawn_) *out_ << '\r' << std::string(what_.size() + kBarChars + 16, ' ') << '\r' << std::flush;
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void draw(std::int64_t done, std::int64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (out_ == nullptr || now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    was_drawn_ = true;
    const double share = static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(total, 1));
    const auto full = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * kBarChars);
    *out_ << fmt::format("\r{} [{}{}] {:5.1f} %", what_, std::string(full, '#'), std::string(kBarChars - full, '.'), 100.0 * share)
          << std::flush;
  }

 private:
  static constexpr std::size_t kBarChars = 30;
  std::ostream* out_;
  std::string what_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  bool was_drawn_ = false;
};

}  // namespace mica::checkpoint
