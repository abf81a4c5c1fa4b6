// SPDX-License-Identifier: Apache-2.0
#include "mica/train/metrics.hpp"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/json.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::train {
namespace {

/// With more, a row would be tens of kilobytes.
constexpr std::size_t kMostRanksListed = 1024;

/// JSON has no NaN or infinity.
nlohmann::ordered_json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : (value > 0 ? "inf" : "-inf");
}

/// Rounded to a multiple of 1 / per_one, so that JSON shows few digits.
double rounded(double value, double per_one) { return std::round(value * per_one) / per_one; }

struct Rows {
  std::string kept, later;
};

/// Nothing if the line is not a row, such as one that a kill cut short. That is not an error.
std::optional<std::int64_t> step_of(const std::string& line, const std::string& path) {
  try {
    const auto row = io::JsonValue::parse<ConfigError>(line, path);
    return row[row.has("step") ? "step" : "from"].integer(0);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

/// The text of a file; "" if there is none.
std::string text_of(const std::string& path) {
  std::error_code error;
  return std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found ? "" : io::read_file(path);
}

/// A file's rows of steps up to last_step, and later ones. Lines that are not rows are dropped.
Rows split_rows(const std::string& text, const std::string& path, std::int64_t last_step) {
  Rows rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::optional<std::int64_t> step = step_of(line, path);
    if (step) (*step <= last_step ? rows.kept : rows.later) += line + "\n";
  }
  return rows;
}

/// Named as in the plan; roles without memory are left out.
nlohmann::ordered_json by_role(const plan::BytesByRole& bytes) {
  auto json = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] > 0) json[memory_role_name(static_cast<MemoryRole>(i))] = bytes[i];
  }
  return json;
}

/// A line, with the time.
std::string line_of(nlohmann::ordered_json row) {
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  row["time"] = static_cast<double>(now.count()) / 1e3;
  return row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::function<void(const std::string&)> warn) : file_(path, std::move(warn)) {}

void drop_later_metrics(const std::string& path, std::int64_t last_step) {
  try {
    const std::string text = text_of(path);
    const std::string kept = split_rows(text, path, last_step).kept;
    if (kept != text) io::write_file_atomically(path, kept);
  } catch (const io::FileError& error) {
    const bool is_mistake = error.is_forbidden() || error.is_missing();  // also a folder of that name
    require<ConfigError>(!is_mistake, "{}; can you read and write all files of the run's folder?", error.what());
    throw;
  }
}

void copy_later_metrics(const std::string& path, std::int64_t last_step, const std::string& to) {
  const std::string later = split_rows(text_of(path), path, last_step).later;
  if (!later.empty()) io::write_file_atomically(to, later);
}

void MetricsFile::write_resumed(const ResumeMetrics& resume) {
  nlohmann::ordered_json json{{"event", "resumed"}, {"from", resume.from}, {"checkpoint", resume.checkpoint}, {"ranks", resume.num_ranks}};
  if (!resume.set_aside.empty()) json["set_aside"] = resume.set_aside;
  file_.append(line_of(std::move(json)));
}

void MetricsFile::write_started(const StartMetrics& start) {
  file_.append(line_of({{"event", "started"},
                        {"step", start.step},
                        {"version", start.version},
                        {"ranks", start.num_ranks},
                        {"steps", start.last_step},
                        {"device", start.device},
                        {"planned_bytes", start.planned_peak},
                        {"planned_by_role", by_role(start.planned)}}));
}

void MetricsFile::write(const StepMetrics& m) {
  nlohmann::ordered_json json{{"event", "step"},
                              {"step", m.step},
                              {"loss", number(m.loss)},
                              {"lr", m.lr},
                              {"grad_norm", m.grad_norm ? number(*m.grad_norm) : nlohmann::ordered_json(nullptr)},
                              {"tokens", m.tokens},
                              {"tokens_per_s", rounded(m.tokens_per_s, 10)},
                              {"step_ms", rounded(m.step_ms, 1e3)},
                              {"comm_wait_ms", rounded(m.comm_wait_ms, 1e3)}};
  if (m.split) {
    json["compute_ms"] = rounded(m.split->compute_ms, 1e3);
    json["exposed_comm_ms"] = rounded(m.split->exposed_comm_ms, 1e3);
    json["optimizer_ms"] = rounded(m.split->optimizer_ms, 1e3);
    json["data_ms"] = rounded(m.split->data_ms, 1e3);
  }
  if (m.gflop_per_s > 0) json["gflop_per_s"] = rounded(m.gflop_per_s, 1e3);
  json["peak_bytes"] = m.peak_bytes;
  if (m.loss_scale != 0) {
    json["loss_scale"] = m.loss_scale;
    json["skipped"] = m.is_skipped;
  } else if (m.is_skipped) {
    json["skipped"] = true;
  }
  file_.append(line_of(std::move(json)));
}

void MetricsFile::write_ranks(std::int64_t step, const std::vector<RankFigures>& ranks) {
  const RankSkew skew = rank_skew(ranks);
  nlohmann::ordered_json json{{"event", "ranks"},
                              {"step", step},
                              {"min_ms", rounded(skew.min_ms, 1e3)},
                              {"median_ms", rounded(skew.median_ms, 1e3)},
                              {"max_ms", rounded(skew.max_ms, 1e3)},
                              {"slowest_rank", skew.slowest_rank}};
  if (ranks.size() <= kMostRanksListed) {
    auto& own = json["own_ms"] = nlohmann::ordered_json::array();
    for (const RankFigures& rank : ranks) own.push_back(rounded(rank.own_ms(), 1e2));
  }
  file_.append(line_of(std::move(json)));
}

void MetricsFile::write_memory(std::int64_t step, const plan::BytesByRole& peaks, std::int64_t peak) {
  file_.append(line_of({{"event", "memory"}, {"step", step}, {"peak_bytes", peak}, {"peak_by_role", by_role(peaks)}}));
}

void MetricsFile::write_bad_step(std::int64_t step, const std::string& what, const std::string& action) {
  file_.append(line_of({{"event", "bad_step"}, {"step", step}, {"what", what}, {"action", action}}));
}

void MetricsFile::write_rolled_back(std::int64_t to, std::int64_t bad_step, const std::string& what) {
  file_.append(line_of({{"event", "rolled_back"}, {"step", to}, {"bad_step", bad_step}, {"what", what}}));
}

void MetricsFile::write_eval(std::int64_t step, double val_loss, double eval_ms) {
  file_.append(line_of({{"event", "eval"}, {"step", step}, {"val_loss", number(val_loss)}, {"eval_ms", rounded(eval_ms, 1e3)}}));
}

void MetricsFile::write_checkpoint(std::int64_t step, std::int64_t bytes, double stall_ms, double write_ms) {
  file_.append(line_of({{"event", "checkpoint"},
                        {"step", step},
                        {"bytes", bytes},
                        {"stall_ms", rounded(stall_ms, 1e3)},
                        {"write_ms", rounded(write_ms, 1e3)}}));
}

}  // namespace mica::train
