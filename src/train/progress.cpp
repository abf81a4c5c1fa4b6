// SPDX-License-Identifier: Apache-2.0
#include "mica/train/progress.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <unistd.h>

#include "mica/plan/memory_plan.hpp"

namespace mica::train {

Progress::Progress(Logger logger, std::int64_t last_step, bool on_terminal)
    : logger_(std::move(logger)), last_step_(last_step), on_terminal_(on_terminal) {}

bool Progress::is_on_terminal() {
  if (std::getenv("CI") != nullptr) return false;
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr && std::getenv("PMI_RANK") == nullptr) return isatty(STDERR_FILENO) == 1;
  // Launchers give their ranks pseudo-terminals or pipes, whatever their own stderr is. So look at the launcher's.
  std::error_code none;
  const auto target = std::filesystem::read_symlink("/proc/" + std::to_string(getppid()) + "/fd/2", none).string();
  return target.starts_with("/dev/pts/") || target.starts_with("/dev/tty");
}

void Progress::show(const StepMetrics& m, double seconds_left, bool keep) {
  if (!on_terminal_ && !keep) return;
  const std::string norm = m.grad_norm ? fmt::format("norm {:.3f}", *m.grad_norm) : "norm unknown";
  const std::string scale =
      m.loss_scale == 0 ? "" : fmt::format("  scale {:.0f}{}", m.loss_scale, m.is_skipped ? " (overflow: skipped)" : "");
  const std::string text =
      fmt::format("step {:>6}/{}  loss {:.4f}  lr {:.2e}  {}{}  {} tokens/s  {:.1f} ms/step  comm {:.1f} ms  peak {}  left {}", m.step,
                  last_step_, m.loss, m.lr, norm, scale, format_rate(m.tokens_per_s), m.step_ms, m.comm_wait_ms,
                  plan::format_bytes(m.peak_bytes), format_duration(seconds_left));
  clear_line();
  if (on_terminal_ && !keep) {
    std::fprintf(stderr, "%s", text.c_str());
    std::fflush(stderr);
    line_is_open_ = true;
  } else {
    logger_.info("{}", text);
  }
}

void Progress::say(const std::string& text) {
  clear_line();
  logger_.info("{}", text);
}

void Progress::warn(const std::string& text) {
  clear_line();
  logger_.warn("{}", text);
}

void Progress::clear_line() {
  if (line_is_open_) std::fprintf(stderr, "\r\033[K");
  line_is_open_ = false;
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto s = static_cast<std::int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
}

std::string format_rate(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.2f}M", per_second / 1e6);
  if (per_second >= 1e4) return fmt::format("{:.1f}k", per_second / 1e3);
  return fmt::format("{:.0f}", per_second);
}

}  // namespace mica::train
