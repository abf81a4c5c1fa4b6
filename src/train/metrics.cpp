// SPDX-License-Identifier: Apache-2.0
#include "mica/train/metrics.hpp"

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/json.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::train {
namespace {

/// JSON has no NaN or infinity.
nlohmann::ordered_json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : (value > 0 ? "inf" : "-inf");
}

double rounded(double value, double unit) { return std::round(value / unit) * unit; }

struct Rows {
  std::string kept, later;
};

/// Nothing for what is no row, as a line that a kill cut short: that is no mistake.
std::optional<std::int64_t> step_of(const std::string& line, const std::string& path) {
  try {
    const auto row = io::JsonValue::parse<ConfigError>(line, path);
    return row[row.has("step") ? "step" : "from"].integer(0);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

/// The rows of a file: those of steps up to last_step, and the others. What is no row is dropped.
Rows split_rows(const std::string& path, std::int64_t last_step) {
  Rows rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::optional<std::int64_t> step = step_of(line, path);
    if (step) (*step <= last_step ? rows.kept : rows.later) += line + "\n";
  }
  return rows;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::function<void(const std::string&)> warn) : path_(path), warn_(std::move(warn)) {
  if (path.empty()) return;
  file_.reset(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  require<ConfigError>(static_cast<bool>(file_), "cannot write {}: {}; is the run folder writable?", path, errno_text(errno));
}

void MetricsFile::write_line(const std::string& json) {
  if (path_.empty()) return;
  const std::string line = json + "\n";
  const off_t before = ::lseek(file_.get(), 0, SEEK_END);
  errno = 0;
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) {
    is_failing_ = false;
    return;
  }
  const int error_number = errno == 0 ? ENOSPC : errno;
  if (written > 0) [[maybe_unused]]
    const int rc = ::ftruncate(file_.get(), before);  // no half rows
  if (std::exchange(is_failing_, true)) return;
  warn_(fmt::format("{}; rows are left out until it can be written again", io::io_error_text(path_, "write", error_number)));
}

void drop_later_metrics(const std::string& path, std::int64_t last_step) {
  try {
    if (std::filesystem::is_regular_file(path)) io::write_file_atomically(path, split_rows(path, last_step).kept);
  } catch (const IoError& error) {
    throw ConfigError(fmt::format("{}; is the run folder writable?", error.what()));
  }
}

void copy_later_metrics(const std::string& path, std::int64_t last_step, const std::string& to) {
  const std::string later = split_rows(path, last_step).later;
  if (!later.empty()) io::write_file_atomically(to, later);
}

void MetricsFile::write_resumed(const ResumeMetrics& resume) {
  nlohmann::ordered_json json{{"event", "resumed"}, {"from", resume.from}, {"checkpoint", resume.checkpoint}, {"ranks", resume.num_ranks}};
  if (!resume.set_aside.empty()) json["set_aside"] = resume.set_aside;
  write_line(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void MetricsFile::write(const StepMetrics& m) {
  nlohmann::ordered_json json{{"event", "step"},
                              {"step", m.step},
                              {"loss", number(m.loss)},
                              {"lr", m.lr},
                              {"grad_norm", m.grad_norm ? number(*m.grad_norm) : nlohmann::ordered_json(nullptr)},
                              {"tokens", m.tokens},
                              {"tokens_per_s", rounded(m.tokens_per_s, 0.1)},
                              {"step_ms", rounded(m.step_ms, 0.001)},
                              {"comm_wait_ms", rounded(m.comm_wait_ms, 0.001)},
                              {"peak_bytes", m.peak_bytes}};
  if (m.loss_scale != 0) {
    json["loss_scale"] = m.loss_scale;
    json["skipped"] = m.is_skipped;
  } else if (m.is_skipped) {
    json["skipped"] = true;
  }
  write_line(json.dump());
}

void MetricsFile::write_bad_step(std::int64_t step, const std::string& what, const std::string& action) {
  write_line(nlohmann::ordered_json{{"event", "bad_step"}, {"step", step}, {"what", what}, {"action", action}}.dump());
}

void MetricsFile::write_rolled_back(std::int64_t to, std::int64_t bad_step, const std::string& what) {
  write_line(nlohmann::ordered_json{{"event", "rolled_back"}, {"step", to}, {"bad_step", bad_step}, {"what", what}}.dump());
}

void MetricsFile::write_eval(std::int64_t step, double val_loss) {
  write_line(nlohmann::ordered_json{{"event", "eval"}, {"step", step}, {"val_loss", number(val_loss)}}.dump());
}

void MetricsFile::write_checkpoint(std::int64_t step, std::int64_t bytes, double stall_ms, double write_ms) {
  write_line(nlohmann::ordered_json{{"event", "checkpoint"},
                                    {"step", step},
                                    {"bytes", bytes},
                                    {"stall_ms", rounded(stall_ms, 0.001)},
                                    {"write_ms", rounded(write_ms, 0.001)}}
                 .dump());
}

}  // namespace mica::train
