// SPDX-License-Identifier: Apache-2.0
#include "mica/report/follow.hpp"

#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "mica/io/path_check.hpp"
#include "mica/train/progress.hpp"
#include "mica/train/run_lock.hpp"
#include "mica/train/stop_signal.hpp"

#include "metrics_rows.hpp"

namespace mica::report {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Visits complete new lines of a growing file.
class GrowingFile {
 public:
  explicit GrowingFile(std::string path) : path_(std::move(path)) {}

  /// Whether the file was replaced by a shorter one (a resume drops rows). Then new_lines() starts again at the beginning.
  bool starts_again() {
    std::error_code error;
    const auto size = fs::file_size(path_, error);
    if (error || size >= offset_) return false;
    offset_ = 0;
    return true;
  }
  template <class Visit>
  void new_lines(const Visit& visit) {
    std::ifstream file(path_);
    file.seekg(static_cast<std::streamoff>(offset_));
    for (std::string line; std::getline(file, line) && !file.eof();) {  // a last line without a line end is still being written
      offset_ += line.size() + 1;
      visit(line);
    }
  }

 private:
  std::string path_;
  std::uintmax_t offset_ = 0;
};

/// False while the file system does not answer.
bool is_dead(const std::string& run_folder) {
  try {
    return train::RunLock::owner_has_died(run_folder);
  } catch (const IoError&) {
    return false;
  }
}

/// What the rows so far say about the run.
class RunState {
 public:
  /// @returns whether the row was a new step
  bool add(const nlohmann::json& row) {
    const std::string event = text_in(row, "event");
    begins_measurement_ = false;
    if (event == "started") {
      last_step_ = integer_in(row, "steps");
      waits_.clear();  // of another launch's ranks
    }
    if (event == "eval") val_ = fmt::format("  val {:.4f}", number_in(row, "val_loss"));
    if (event == "resumed" || event == "rolled_back") {
      step_ = integer_in(row, event == "resumed" ? "from" : "step");
      ++num_returns_;
    }
    if (event == "ranks") {
      const double max = number_in(row, "max_ms"), min = number_in(row, "min_ms"), median = number_in(row, "median_ms");
      // Small differences are noise.
      waits_ = max > 1.05 * median ? fmt::format("  others wait for rank {}: {:.1f} ms of its own per step, median {:.1f}, minimum {:.1f}",
                                                 integer_in(row, "slowest_rank"), max, median, min)
                                   : fmt::format("  ranks even: {:.1f} to {:.1f} ms", min, max);
    }
    if (event != "step" || integer_in(row, "step") <= step_) return false;  // or already shown before a resume
    step_ = integer_in(row, "step");
    loss_ = number_in(row, "loss");
    const double tokens_per_s = number_in(row, "tokens_per_s"), step_ms = number_in(row, "step_ms");
    begins_measurement_ = tokens_per_s != tokens_per_s_ || step_ms != step_ms_;
    tokens_per_s_ = tokens_per_s;
    step_ms_ = step_ms;
    return true;
  }
  [[nodiscard]] std::string text() const {
    if (step_ms_ == 0) return "no step yet";
    const std::string left = last_step_ == 0 ? "?" : train::format_duration(static_cast<double>(last_step_ - step_) * step_ms_ / 1e3);
    return fmt::format("step {:>6}/{}  loss {:.4f}{}  {} tokens/s  {:.1f} ms/step  left {}{}", step_,
                       last_step_ == 0 ? "?" : std::to_string(last_step_), loss_, val_, train::format_rate(tokens_per_s_), step_ms_, left,
                       waits_);
  }
  [[nodiscard]] std::int64_t step() const { return step_; }
  /// Whether the last row was a step with times of its own: the train.log_interval steps that are measured together have the same.
  [[nodiscard]] bool begins_measurement() const { return begins_measurement_; }
  /// How often the run went back to an earlier step.
  [[nodiscard]] std::int64_t num_returns() const { return num_returns_; }
  [[nodiscard]] bool is_complete() const { return last_step_ > 0 && step_ >= last_step_; }

 private:
  std::int64_t step_ = 0, last_step_ = 0, num_returns_ = 0;
  double loss_ = 0, tokens_per_s_ = 0, step_ms_ = 0;
  bool begins_measurement_ = false;
  std::string val_, waits_;
};

/// The lock's text, which changes with each heartbeat; empty: no job owns the folder. @param before  stands for it while the file system
/// does not answer
std::string lock_text(const std::string& folder, const std::string& before) {
  const std::string path = folder + "/run.lock";
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return "";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return file.bad() || text.empty() ? before : text;
}

}  // namespace

std::string followed_folder(const std::vector<std::string>& arguments) {
  const bool is_right = arguments.size() == 2 && arguments[0] != arguments[1];
  require<ConfigError>(is_right, "--follow takes the folder of one run and no other options: mica-inspect RUN --follow");
  return arguments[arguments[0] == "--follow" ? 1 : 0];
}

ExitCode follow_run(const std::string& folder, std::ostream& out, const FollowOptions& options) {
  const std::string no_folder = io::why_no_folder(folder), no_metrics = io::why_no_file(folder + "/metrics.jsonl");
  require<ConfigError>(no_folder.empty(), "{}: {}; expected the folder of a run, such as runs/shakespeare", folder, no_folder);
  require<ConfigError>(no_metrics.empty() || io::why_no_file(folder + "/run.lock").empty(),
                       "{} has neither run.lock nor metrics.jsonl ({}): no run was started there", folder, no_metrics);
  const train::StopSignal stop;  // Ctrl-C ends following without an error
  GrowingFile metrics(folder + "/metrics.jsonl");
  RunState state;
  std::string seen_lock = "not read yet";
  Clock::time_point heard = Clock::now();
  std::string unsaid;  // the newest line of a measurement, of which more rows may follow; not on a terminal
  const auto draw = [&](const std::string& text) {
    if (options.on_terminal) {
      const std::size_t columns = options.columns ? options.columns() : 0;
      out << "\r\033[K" << (columns > 1 ? text.substr(0, columns - 1) : text);  // only one row can be cleared
    } else {
      out << text << "\n";
    }
    out.flush();
  };
  const auto say = [&] {
    if (!unsaid.empty()) draw(std::exchange(unsaid, ""));
  };
  for (bool is_first = true;; is_first = false) {
    // Before the rows, so that all rows of a job that has just ended are seen.
    const std::string lock = lock_text(folder, seen_lock);
    const bool has_died = is_dead(folder);
    bool has_new_step = false;
    const bool is_again = metrics.starts_again();
    const std::int64_t seen_returns = state.num_returns();
    if (is_again) state = {};
    metrics.new_lines([&](const std::string& line) {
      const auto row = nlohmann::json::parse(line, nullptr, false);
      if (!row.is_object()) return;
      const bool is_step = state.add(row);
      // In a file that is read again, only rows after a further return are new.
      const bool is_new = !is_first && (!is_again || state.num_returns() > seen_returns);
      if (state.begins_measurement()) say();
      if (is_new && !options.on_terminal && (is_step || (!unsaid.empty() && text_in(row, "event") == "ranks"))) unsaid = state.text();
      has_new_step = has_new_step || is_step;
    });
    say();
    if (is_first || ((has_new_step || is_again) && options.on_terminal)) draw(state.text());
    if (lock != seen_lock) heard = Clock::now();
    seen_lock = lock;
    const bool is_silent = !lock.empty() && Clock::now() - heard > options.silent_after;
    if (lock.empty() || has_died || is_silent || train::StopSignal::received() != 0) {
      if (options.on_terminal) out << "\n";
      out.flush();
      require(!has_died, "{}: the job has died after step {}: it was killed, or crashed; log.txt may say why", folder, state.step());
      require(!is_silent, "{}: the job has been silent for {} s, after step {}: it was killed, or its node is lost", folder,
              options.silent_after.count(), state.step());
      if (lock.empty() && state.is_complete()) out << "the run is complete\n";
      if (lock.empty() && !state.is_complete()) out << fmt::format("no job is training here; the run has done {} steps\n", state.step());
      out.flush();
      return ExitCode::done;
    }
    std::this_thread::sleep_for(options.interval);
  }
}

}  // namespace mica::report
