// SPDX-License-Identifier: Apache-2.0
#include "run_data.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "mica/core/error.hpp"

#include "log_events.hpp"
#include "metrics_rows.hpp"
#include "thinned.hpp"
#include "trace_data.hpp"

namespace mica::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
/// Saves are limited further, to leave room for rarer events.
constexpr std::size_t kMostEvents = 400, kMostSaves = 200, kMostWarnings = 200;

/// Rounded to seven digits, more than a screen shows. Null, a gap, for NaN, which JSON does not have.
Json short_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == 0) return 0;
  const double unit = std::pow(10.0, std::floor(std::log10(std::abs(value))) - 6);
  if (unit >= 1) return std::abs(value) < 1e15 ? Json(static_cast<std::int64_t>(std::round(value))) : Json(value);
  const double scale = std::round(1 / unit);
  return std::round(value * scale) / scale;
}

/// @param values  at least one
double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

template <std::size_t N>
Json columns(const std::vector<std::array<double, N>>& rows, const std::array<const char*, N>& names) {
  Json json = Json::object();
  for (std::size_t i = 0; i < N; ++i) {
    Json column = Json::array();
    for (const auto& row : rows) column.push_back(short_number(row[i]));
    json[names[i]] = std::move(column);
  }
  return json;
}

/// A row's position on the axes.
struct Place {
  double step = 0, tokens = 0, hours = 0;
};

/// Summed times of the steps in a stretch, and the slowest step.
struct SplitBucket {
  double step = kNan, num = 0, compute = 0, exposed = 0, optimizer = 0, data = 0, evaluation = 0, checkpoint = 0, slowest = 0;
};

/// The heat map of ranks over time. A cell has the longest own time among its steps and ranks. A column also has the median of all ranks,
/// which cells of several ranks do not tell.
class SkewMap {
 public:
  SkewMap(std::int64_t num_rows, const Detail& detail) : num_rows_(num_rows), detail_(detail) {}

  /// @param row  of ranks. @param num_ranks  of the run
  void add(const nlohmann::json& row, std::int64_t num_ranks) {
    if (row.contains("own_ms") && row["own_ms"].is_array()) {
      const nlohmann::json& own = row["own_ms"];
      Column& column = next_column(row, std::ssize(own));
      if (column.own_ms.size() < own.size()) column.own_ms.resize(own.size(), 0);
      for (std::size_t rank = 0; rank < own.size(); ++rank) {
        if (own[rank].is_number()) column.own_ms[rank] = std::max(column.own_ms[rank], own[rank].get<double>());
      }
    } else {
      add_slowest(row, num_ranks);
    }
  }

  [[nodiscard]] Json json() const {
    if (num_ranks_ == 0) return nullptr;
    const std::int64_t ranks_per_row = (num_ranks_ + detail_.num_rows - 1) / detail_.num_rows;
    const bool has_slowest_only = std::ranges::any_of(columns_, [](const Column& column) { return !column.slowest.empty(); });
    Json steps = Json::array(), cells = Json::array(), medians = Json::array();
    for (const Column& column : columns_) {
      if (column.own_ms.empty() && column.slowest.empty()) continue;
      steps.push_back(short_number(column.step));
      Json cell = Json::array();
      const std::vector<double> all = column.all_own_ms();
      for (std::size_t rank = 0; rank < all.size(); rank += static_cast<std::size_t>(ranks_per_row)) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank);
        const auto end = all.end() - begin > ranks_per_row ? begin + ranks_per_row : all.end();
        cell.push_back(std::round(*std::max_element(begin, end) * 100) / 100);
      }
      cells.push_back(std::move(cell));
      medians.push_back(short_number(median_of(all)));
    }
    return {{"ranks", num_ranks_},      {"ranks_per_row", ranks_per_row}, {"has_slowest_only", has_slowest_only},
            {"step", std::move(steps)}, {"own_ms", std::move(cells)},     {"median_ms", std::move(medians)}};
  }

 private:
  struct Column {
    double step = 0;
    std::vector<double> own_ms;  // by rank
    // Of rows that name the slowest rank alone:
    std::map<std::size_t, double> slowest;  // own ms by rank
    std::size_t num_ranks = 0;
    double median_ms = 0;

    /// By rank; those that are not named are taken to be at the median.
    [[nodiscard]] std::vector<double> all_own_ms() const {
      if (slowest.empty()) return own_ms;
      std::vector<double> all(std::max(num_ranks, own_ms.size()), median_ms);
      for (std::size_t rank = 0; rank < own_ms.size(); ++rank) all[rank] = std::max(all[rank], own_ms[rank]);
      for (const auto& [rank, ms] : slowest) all[rank] = std::max(all[rank], ms);
      return all;
    }
  };

  Column& next_column(const nlohmann::json& row, std::int64_t num_ranks) {
    num_ranks_ = std::max(num_ranks_, num_ranks);
    const std::size_t bucket = bucket_of(next_++, num_rows_, std::min(num_rows_, detail_.num_columns));
    if (bucket >= columns_.size()) columns_.resize(bucket + 1);
    columns_[bucket].step = number_in(row, "step");
    return columns_[bucket];
  }

  /// A row of more ranks than are listed.
  void add_slowest(const nlohmann::json& row, std::int64_t num_ranks) {
    constexpr std::int64_t kMostRanks = 1 << 20;
    const std::int64_t slowest = integer_in(row, "slowest_rank");
    const double median = number_in(row, "median_ms"), longest = number_in(row, "max_ms");
    if (slowest < 0 || slowest >= num_ranks || num_ranks > kMostRanks || !std::isfinite(median) || !std::isfinite(longest)) return;
    Column& column = next_column(row, num_ranks);
    column.num_ranks = std::max(column.num_ranks, static_cast<std::size_t>(num_ranks));
    column.median_ms = std::max(column.median_ms, median);
    double& own = column.slowest[static_cast<std::size_t>(slowest)];
    own = std::max(own, longest);
  }

  std::int64_t num_rows_;
  Detail detail_;
  std::int64_t next_ = 0, num_ranks_ = 0;
  std::vector<Column> columns_;
};

/// Collects what the views need, row by row.
class RunReader {
 public:
  RunReader(const MetricsRows& rows, const Detail& detail)
      : num_steps_(rows.count("step")),
        num_buckets_(std::min(num_steps_, detail.num_bars)),
        loss_(num_steps_, detail.num_points),
        speed_(num_steps_, detail.num_points),
        val_(rows.count("eval"), detail.num_points),
        skew_(rows.count("ranks"), detail) {}

  void add(const nlohmann::json& row) {
    const std::string event = row["event"];
    if (row.contains("time")) time_ = number_in(row, "time");
    if (event == "step") return add_step(row);
    if (event == "eval") return add_eval(row);
    if (event == "ranks") {
      skew_.add(row, started_.is_object() ? integer_in(started_, "ranks") : 0);
      return;
    }
    if (event == "memory") {
      memory_ = row;
      return;
    }
    if (event == "started") {
      started_ = row;
      memory_ = nullptr;  // peaks of the launch before, perhaps on other ranks
      step_peak_ = 0;
      add_event(row, "start", "started on " + std::to_string(integer_in(row, "ranks")) + " ranks, " + text_in(row, "version"));
    } else if (event == "checkpoint") {
      checkpoint_ms_ += std::max(0.0, or_zero(number_in(row, "stall_ms")));
      place_.hours += or_zero(number_in(row, "stall_ms")) / 3.6e6;
      if (!split_.empty()) split_.back().checkpoint += or_zero(number_in(row, "stall_ms"));
      add_event(row, "save", "saved, " + std::to_string(integer_in(row, "bytes") >> 20) + " MiB");
    } else if (event == "resumed") {
      add_event(row, "restart",
                "resumed from " + text_in(row, "checkpoint") + " on " + std::to_string(integer_in(row, "ranks")) + " ranks");
    } else if (event == "bad_step") {
      add_event(row, "fault", "bad step (" + text_in(row, "action") + "): " + text_in(row, "what"));
    } else if (event == "rolled_back") {
      add_event(row, "restart", "rolled back after step " + std::to_string(integer_in(row, "bad_step")) + ": " + text_in(row, "what"));
    }
  }

  [[nodiscard]] Json json(const std::string& folder) const {
    Json json{{"folder", folder}, {"summary", summary()}};
    json["loss"] = columns(loss_.rows(), std::array{"step", "tokens", "hours", "loss"});
    json["val"] = columns(val_.rows(), std::array{"step", "tokens", "hours", "loss"});
    json["speed"] = columns(speed_.rows(), std::array{"step", "tokens", "hours", "tokens_per_s", "gflop_per_s"});
    json["split"] = split_json();
    json["skew"] = skew_.json();
    json["memory"] = memory_json();
    json["events"] = events_;
    json["more_events"] = more_events_;
    return json;
  }
  void add_log(LogEvents log) {
    for (Json& event : log.events) events_.push_back(std::move(event));
    more_events_ += log.num_left_out;
  }

 private:
  static double or_zero(double value) { return std::isfinite(value) ? value : 0; }

  void add_event(const nlohmann::json& row, const char* kind, std::string text) {
    const bool is_save = std::string_view(kind) == "save";
    if (events_.size() >= kMostEvents || (is_save && num_saves_ >= kMostSaves)) {
      ++more_events_;
      return;
    }
    Json event{{"step", integer_in(row, row.contains("step") ? "step" : "from")}, {"kind", kind}, {"text", std::move(text)}};
    if (row.contains("time")) event["time"] = std::round(number_in(row, "time"));
    events_.push_back(std::move(event));
    num_saves_ += is_save ? 1 : 0;
  }

  void add_step(const nlohmann::json& row) {
    const double step = number_in(row, "step"), tokens = number_in(row, "tokens"), step_ms = number_in(row, "step_ms");
    if (place_.step == 0) place_.tokens = std::max(0.0, step - 1) * or_zero(tokens);  // rows of earlier steps may be missing
    place_ = {step, place_.tokens + or_zero(tokens), place_.hours + or_zero(step_ms) / 3.6e6};
    const double loss = number_in(row, "loss"), tokens_per_s = number_in(row, "tokens_per_s");
    loss_.add(loss, {place_.step, place_.tokens, place_.hours, loss});
    speed_.add(tokens_per_s, {place_.step, place_.tokens, place_.hours, tokens_per_s, number_in(row, "gflop_per_s")});
    last_ = row;
    step_peak_ = integer_in(row, "peak_bytes");
    if (std::isfinite(tokens_per_s)) speeds_.push_back(tokens_per_s);

    const std::size_t bucket = bucket_of(next_++, num_steps_, num_buckets_);
    if (bucket >= split_.size()) split_.resize(bucket + 1);
    SplitBucket& b = split_[bucket];
    b.step = step;
    b.num += 1;
    has_split_ = has_split_ || row.contains("compute_ms");
    const double exposed = number_in(row, row.contains("compute_ms") ? "exposed_comm_ms" : "comm_wait_ms");
    b.exposed += or_zero(exposed);
    b.compute += or_zero(row.contains("compute_ms") ? number_in(row, "compute_ms") : step_ms - exposed);
    b.optimizer += or_zero(number_in(row, "optimizer_ms"));
    b.data += or_zero(number_in(row, "data_ms"));
    b.slowest = std::max(b.slowest, or_zero(step_ms));
  }

  void add_eval(const nlohmann::json& row) {
    const double loss = number_in(row, "val_loss"), ms = or_zero(number_in(row, "eval_ms"));
    place_.hours += ms / 3.6e6;
    eval_ms_ += ms;
    val_.add(loss, {number_in(row, "step"), place_.tokens, place_.hours, loss});
    if (!split_.empty()) split_.back().evaluation += ms;
    if (std::isfinite(loss) && (!best_val_ || loss < *best_val_)) {
      best_val_ = loss;
      best_step_ = number_in(row, "step");
    }
    last_val_ = loss;
  }

  [[nodiscard]] Json split_json() const {
    std::vector<std::array<double, 8>> rows;
    for (const SplitBucket& b : split_) {
      if (b.num == 0) continue;
      rows.push_back({b.step, b.compute / b.num, b.exposed / b.num, b.optimizer / b.num, b.data / b.num, b.checkpoint / b.num,
                      b.evaluation / b.num, b.slowest});
    }
    Json json = columns(rows, std::array{"step", "compute", "exposed_comm", "optimizer", "data", "checkpoint", "evaluation", "slowest"});
    json["is_measured"] = has_split_;
    return json;
  }

  [[nodiscard]] Json memory_json() const {
    if (started_.is_null() && memory_.is_null()) return nullptr;
    const auto part = [](const nlohmann::json& row, const char* field) {
      return row.is_object() && row.contains(field) && row[field].is_object() ? row[field] : nlohmann::json::object();
    };
    return {{"planned", part(started_, "planned_by_role")},
            {"measured", part(memory_, "peak_by_role")},
            {"planned_peak", started_.is_object() ? integer_in(started_, "planned_bytes") : 0},
            {"measured_peak", memory_.is_object() ? integer_in(memory_, "peak_bytes") : 0},
            {"largest_rank_peak", step_peak_}};
  }

  [[nodiscard]] Json summary() const {
    Json json{{"steps", place_.step}, {"tokens", place_.tokens}, {"hours", short_number(place_.hours)}};
    if (started_.is_object()) {
      json["planned_steps"] = integer_in(started_, "steps");
      json["ranks"] = integer_in(started_, "ranks");
      json["device"] = text_in(started_, "device");
      json["version"] = text_in(started_, "version");
    }
    if (last_.is_object()) {
      json["loss"] = short_number(number_in(last_, "loss"));
      json["step_ms"] = short_number(number_in(last_, "step_ms"));
    }
    if (std::vector<double> speeds = speeds_; !speeds.empty()) {
      const auto half = speeds.begin() + static_cast<std::ptrdiff_t>(speeds.size() / 2);
      std::ranges::nth_element(speeds, half);
      json["tokens_per_s"] = short_number(*half);
    }
    if (best_val_) {
      json["best_val"] = short_number(*best_val_);
      json["best_val_step"] = best_step_;
      json["last_val"] = short_number(last_val_);
    }
    json["eval_hours"] = short_number(eval_ms_ / 3.6e6);
    json["checkpoint_hours"] = short_number(checkpoint_ms_ / 3.6e6);
    if (time_) json["last_time"] = *time_;
    return json;
  }

  std::int64_t num_steps_, num_buckets_;
  ThinnedRows<4> loss_;
  ThinnedRows<5> speed_;
  ThinnedRows<4> val_;
  SkewMap skew_;
  std::vector<double> speeds_;  // tokens/s of every step
  std::vector<SplitBucket> split_;
  std::int64_t next_ = 0;
  Place place_;
  bool has_split_ = false;
  nlohmann::json started_, memory_, last_;  // rows; null: there is none
  std::int64_t step_peak_ = 0;              // of the launch's last step
  double eval_ms_ = 0, checkpoint_ms_ = 0, last_val_ = kNan, best_step_ = 0;
  std::optional<double> best_val_, time_;
  std::vector<Json> events_;
  std::size_t num_saves_ = 0;  // of events_
  std::int64_t more_events_ = 0;
};

}  // namespace

Json run_data(const std::string& folder, const Detail& detail) {
  const MetricsRows rows(folder + "/metrics.jsonl");
  RunReader reader(rows, detail);
  rows.for_each([&](const nlohmann::json& row) { reader.add(row); });
  reader.add_log(log_events(folder + "/log.txt", kMostWarnings));
  Json json = reader.json(folder);
  std::vector<std::string> left_out;
  json["trace"] = traces_json(trace_files(folder), detail.num_traced_ranks, left_out);
  if (!left_out.empty()) {
    json["trace_note"] = left_out.size() == 1 ? left_out[0] : fmt::format("{} (and {} more)", left_out[0], left_out.size() - 1);
  }
  return json;
}

}  // namespace mica::report
