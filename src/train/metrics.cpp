#include "mica/train/metrics.hpp"

#include <cmath>
#include <filesystem>
#include <vector>

#include <nlohmann/json.hpp>

#include "mica/core/error.hpp"

namespace mica::train {
namespace {

/// JSON has no NaN or infinity.
nlohmann::ordered_json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : (value > 0 ? "inf" : "-inf");
}

double rounded(double value, double unit) { return std::round(value / unit) * unit; }

/// Lines of steps up to last_step. A line cut short by a kill is dropped.
std::vector<std::string> lines_to_keep(const std::string& path, std::int64_t last_step) {
  std::vector<std::string> kept;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    const auto step = json.find("step");
    if (step != json.end() && step->is_number_integer() && step->get<std::int64_t>() <= last_step) kept.push_back(line);
  }
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::int64_t last_step) : path_(path) {
  if (path.empty()) return;
  const std::vector<std::string> kept = lines_to_keep(path, last_step);
  const std::string temporary = path + ".tmp";
  {
    std::ofstream out(temporary, std::ios::trunc);
    for (const std::string& line : kept) out << line << '\n';
    out.flush();
    require<ConfigError>(static_cast<bool>(out), "cannot write {}: is the run folder writable?", temporary);
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  require<ConfigError>(!error, "cannot replace {}: {}", path, error.message());
  file_.open(path, std::ios::app);
  require<ConfigError>(static_cast<bool>(file_), "cannot write {}: is the run folder writable?", path);
}

void MetricsFile::write_line(const std::string& json) {
  if (path_.empty()) return;
  file_ << json << '\n';
  file_.flush();
  require<IoError>(static_cast<bool>(file_), "writing {} failed: is the disk full?", path_);
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
  }
  write_line(json.dump());
}

void MetricsFile::write_eval(std::int64_t step, double val_loss) {
  write_line(nlohmann::ordered_json{{"event", "eval"}, {"step", step}, {"val_loss", number(val_loss)}}.dump());
}

void MetricsFile::write_checkpoint(std::int64_t step, std::int64_t bytes, double stall_ms, double write_ms) {
  write_line(nlohmann::ordered_json{{"event", "checkpoint"},
                                    {"step", step},
                                    {"bytes", bytes},
                                    {"stall_ms", rounded(stall_ms, 0.001)},
                                    {"write_ms", rounded(write_ms, 0.001)}}.dump());
}

}  // namespace mica::train
