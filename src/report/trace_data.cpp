// SPDX-License-Identifier: Apache-2.0
#include "trace_data.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "mica/core/error.hpp"

namespace mica::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kExpected = "expected a run's folder or its trace-rank*.json, which a run with --log.trace=FIRST-LAST writes";
/// Share of a timeline; neighbours shorter than this are drawn as one.
constexpr double kFinest = 1.0 / 2500;
/// The most slices of a step kept while a file is read, 32 bytes each.
constexpr std::size_t kMostSlices = 1'500'000;

/// One event of a file.
struct TraceEvent {
  std::string phase, name, category, label;  // label: args.name
  int process = 0, row = 0;
  double begin_us = 0, length_us = 0;
  std::int64_t bytes = 0;
};

/// Visits the events of a trace while the file is parsed, without keeping them.
class TraceParser final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit TraceParser(std::function<void(const TraceEvent&)> visit) : visit_(std::move(visit)) {}
  [[nodiscard]] bool has_events() const { return has_list_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return number(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool string(string_t& value) override {
    if (depth_ == kInEvent) {
      if (key_ == "ph") event_.phase = value;
      if (key_ == "name") event_.name = value;
      if (key_ == "cat") event_.category = value;
    } else if (depth_ == kInEvent + 1 && key_ == "name") {
      event_.label = value;
    }
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    if (++depth_ == kInEvent) event_ = {};
    return true;
  }
  bool key(string_t& value) override {
    key_ = value;
    return true;
  }
  bool end_object() override {
    if (depth_-- == kInEvent && is_in_list_) visit_(event_);
    return true;
  }
  bool start_array(std::size_t) override {
    if (++depth_ == kInEvent - 1 && key_ == "traceEvents") has_list_ = is_in_list_ = true;
    return true;
  }
  bool end_array() override {
    if (depth_-- == kInEvent - 1) is_in_list_ = false;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  static constexpr int kInEvent = 3;  // {"traceEvents": [ {
  bool number(double value) {
    if (depth_ == kInEvent) {
      if (key_ == "pid") event_.process = static_cast<int>(value);
      if (key_ == "tid") event_.row = static_cast<int>(value);
      if (key_ == "ts") event_.begin_us = value;
      if (key_ == "dur") event_.length_us = value;
    } else if (depth_ == kInEvent + 1 && key_ == "bytes") {
      event_.bytes = static_cast<std::int64_t>(value);
    }
    return true;
  }

  std::function<void(const TraceEvent&)> visit_;
  TraceEvent event_;
  std::string key_;
  int depth_ = 0;
  bool has_list_ = false, is_in_list_ = false;
};

void for_each_event(const std::string& path, const std::function<void(const TraceEvent&)>& visit) {
  errno = 0;
  std::ifstream file(path);
  require<ConfigError>(file.is_open(), "{}: {}; {}", path, errno_text(errno), kExpected);
  TraceParser parser(visit);
  const bool is_read = nlohmann::json::sax_parse(file, &parser);
  require<ConfigError>(is_read && parser.has_events(), "{}: not a trace of log.trace; {}", path, kExpected);
}

bool is_collective(std::string_view name) {
  static constexpr std::array<std::string_view, 7> kKinds{"all_gather", "reduce_scatter",   "all_reduce",       "all_to_all",
                                                          "broadcast",  "wait_for_written", "wait_for_released"};
  return std::ranges::find(kKinds, name.substr(0, name.find(' '))) != kKinds.end();
}

using RowNames = std::map<int, std::string>;

bool is_compute(const RowNames& rows, int row) {
  const auto found = rows.find(row);
  return found != rows.end() && found->second == "compute";
}

struct Stretch {
  double begin_us = 0, end_us = 0;
};

/// Sums over a file's events.
class TraceSums {
 public:
  void add(const TraceEvent& e) {
    if (e.phase == "M" && e.name == "thread_name") rows_[e.row] = e.label;
    if (e.phase != "X") return;
    summary_.rank = e.process;
    first_us_ = has_slices_ ? std::min(first_us_, e.begin_us) : e.begin_us;
    last_us_ = std::max(last_us_, e.begin_us + e.length_us);
    has_slices_ = true;
    const bool collective = e.category == "task" && is_collective(e.name);
    if (e.category != "range") {
      // Times are rounded to the nanosecond.
      is_inline_ = is_inline_ && e.begin_us > last_end_us_ - 0.01;
      last_end_us_ = e.begin_us + e.length_us;
    }
    if (collective) {
      ++summary_.num_collectives;
      summary_.busy_ms += e.length_us / 1e3;
      summary_.bytes += e.bytes;
    }
    if (is_compute(rows_, e.row) && (collective || e.category == "wait")) idle_ms_ += e.length_us / 1e3;
    if (e.category == "range" && e.name.starts_with("step ") && e.name.ends_with(" whole")) {
      steps_.emplace_back(e.name.substr(5, e.name.size() - 11), Stretch{e.begin_us, e.begin_us + e.length_us});
    }
  }
  [[nodiscard]] bool has_slices() const { return has_slices_; }
  [[nodiscard]] TraceSummary summary() const {
    TraceSummary summary = summary_;
    summary.span_ms = (last_us_ - first_us_) / 1e3;
    summary.exposed_ms = is_inline_ ? summary.busy_ms : idle_ms_;
    return summary;
  }
  /// Whether all streams ran in one thread (mesh.streams = inline): in the order of the file, one task after the other.
  [[nodiscard]] bool is_inline() const { return is_inline_; }
  /// The traced step of median length; the whole trace if steps are not marked.
  [[nodiscard]] std::pair<std::string, Stretch> step() const {
    if (steps_.empty()) return {"", {first_us_, last_us_}};
    auto steps = steps_;
    const auto half = steps.begin() + static_cast<std::ptrdiff_t>((steps.size() - 1) / 2);
    std::ranges::nth_element(steps, half, {}, [](const auto& s) { return s.second.end_us - s.second.begin_us; });
    return *half;
  }
  [[nodiscard]] const RowNames& rows() const { return rows_; }

 private:
  TraceSummary summary_;
  RowNames rows_;
  double first_us_ = 0, last_us_ = 0;
  double idle_ms_ = 0;  // of the compute stream: it waits, or runs collectives itself
  double last_end_us_ = 0;
  bool has_slices_ = false, is_inline_ = true;
  std::vector<std::pair<std::string, Stretch>> steps_;
};

TraceSums summed(const std::string& file) {
  TraceSums sums;
  for_each_event(file, [&](const TraceEvent& e) { sums.add(e); });
  require<ConfigError>(sums.has_slices(), "{}: no events; did the run reach the steps of log.trace?", file);
  return sums;
}

enum class Kind : std::uint8_t { task, wait, range, collective };

struct Slice {
  float begin_us = 0, length_us = 0;  // from the beginning of the step
  std::uint32_t name = 0;             // in the list of names
  std::uint32_t bytes_kib = 0;
  float exposed_us = 0;  // of a collective
  std::uint32_t num = 1;
  std::uint8_t row = 0;
  Kind kind = Kind::task;
};

/// Maps each name to a number.
class Names {
 public:
  std::uint32_t operator[](const std::string& name) {
    const auto [place, is_new] = index_.emplace(name, static_cast<std::uint32_t>(names_.size()));
    if (is_new) names_.push_back(name);
    return place->second;
  }
  [[nodiscard]] const std::vector<std::string>& all() const { return names_; }

 private:
  std::unordered_map<std::string, std::uint32_t> index_;
  std::vector<std::string> names_;
};

/// Sets for each collective how long the compute stream was idle during it. @param is_inline  any stream's collective makes it idle
void set_exposed(std::vector<Slice>& slices, std::uint8_t compute_row, bool is_inline) {
  std::vector<std::pair<float, float>> idle;
  for (const Slice& s : slices) {
    const bool is_idle =
        s.row == compute_row ? s.kind == Kind::wait || s.kind == Kind::collective : is_inline && s.kind == Kind::collective;
    if (is_idle) idle.emplace_back(s.begin_us, s.begin_us + s.length_us);
  }
  std::ranges::sort(idle);
  for (Slice& s : slices) {
    if (s.kind != Kind::collective) continue;
    const float end = s.begin_us + s.length_us;
    auto from = std::ranges::lower_bound(idle, s.begin_us, {}, &std::pair<float, float>::second);
    for (; from != idle.end() && from->first < end; ++from) {
      s.exposed_us += std::max(0.0F, std::min(end, from->second) - std::max(s.begin_us, from->first));
    }
  }
}

/// Merges neighbours of the same row and kind that are too short for a screen to tell apart. A merged slice keeps the first one's name.
std::vector<Slice> merged(std::vector<Slice> slices, double step_us) {
  std::ranges::sort(slices, {}, [](const Slice& s) { return std::tuple(s.row, s.kind == Kind::range, s.begin_us, -s.length_us); });
  const auto finest = static_cast<float>(step_us * kFinest);
  std::vector<Slice> out;
  for (const Slice& s : slices) {
    const bool joins = !out.empty() && out.back().row == s.row && out.back().kind == s.kind && s.kind != Kind::range &&
                       s.length_us < finest && out.back().length_us < finest &&
                       s.begin_us - (out.back().begin_us + out.back().length_us) < finest;
    if (!joins) {
      out.push_back(s);
      continue;
    }
    Slice& last = out.back();
    last.length_us = s.begin_us + s.length_us - last.begin_us;
    last.bytes_kib += s.bytes_kib;
    last.exposed_us += s.exposed_us;
    last.num += s.num;
  }
  return out;
}

double tenth(double value) { return std::round(value * 10) / 10; }

/// Calls, bytes, time and exposed time, by name, of collectives and of the compute stream's waits. The most exposed come first.
Json by_name(const std::vector<Slice>& slices, const Names& names, int compute_row) {
  struct Sum {
    std::uint32_t name = 0;
    std::int64_t num = 0, kib = 0;
    double ms = 0, exposed_ms = 0;
  };
  std::map<std::uint32_t, Sum> sums;
  for (const Slice& s : slices) {
    if (s.kind != Kind::collective && (s.kind != Kind::wait || s.row != compute_row)) continue;
    Sum& sum = sums[s.name];
    sum.name = s.name;
    sum.num += s.num;
    sum.kib += s.bytes_kib;
    sum.ms += static_cast<double>(s.length_us) / 1e3;
    sum.exposed_ms += static_cast<double>(s.kind == Kind::wait ? s.length_us : s.exposed_us) / 1e3;
  }
  std::vector<Sum> costly;
  for (const auto& [name, sum] : sums) costly.push_back(sum);
  std::ranges::sort(costly, std::greater{}, [](const Sum& sum) { return std::pair(sum.exposed_ms, sum.ms); });
  if (costly.size() > 12) costly.resize(12);
  Json json = Json::array();
  for (const Sum& sum : costly) {
    json.push_back({{"name", names.all()[sum.name]},
                    {"num", sum.num},
                    {"kib", sum.kib},
                    {"ms", std::round(sum.ms * 1e3) / 1e3},
                    {"exposed_ms", std::round(sum.exposed_ms * 1e3) / 1e3}});
  }
  return json;
}

Json timeline(const std::string& file, const TraceSums& sums) {
  const auto [step, stretch] = sums.step();
  const double step_us = stretch.end_us - stretch.begin_us;
  Names names;
  std::vector<Slice> slices;
  bool is_cut = false;
  const std::uint32_t row_limit = 255;
  for_each_event(file, [&](const TraceEvent& e) {
    const bool is_step = e.category == "range" && e.name.starts_with("step ");
    if (e.phase != "X" || is_step || e.begin_us >= stretch.end_us || e.begin_us + e.length_us <= stretch.begin_us) return;
    if (slices.size() >= kMostSlices || static_cast<std::uint32_t>(e.row) > row_limit) {
      is_cut = true;
      return;
    }
    const Kind kind = e.category == "wait"    ? Kind::wait
                      : e.category == "range" ? Kind::range
                      : is_collective(e.name) ? Kind::collective
                                              : Kind::task;
    const double begin = std::max(e.begin_us, stretch.begin_us), end = std::min(e.begin_us + e.length_us, stretch.end_us);
    slices.push_back({.begin_us = static_cast<float>(begin - stretch.begin_us),
                      .length_us = static_cast<float>(end - begin),
                      .name = names[e.name],
                      .bytes_kib = static_cast<std::uint32_t>((e.bytes + 1023) / 1024),
                      .row = static_cast<std::uint8_t>(e.row),
                      .kind = kind});
  });
  int compute_row = 0;
  Json row_names = Json::object();
  for (const auto& [row, name] : sums.rows()) {
    row_names[std::to_string(row)] = name;
    if (name == "compute") compute_row = row;
  }
  set_exposed(slices, static_cast<std::uint8_t>(compute_row), sums.is_inline());
  Json costly = by_name(slices, names, compute_row);
  Names used;
  Json list = Json::array();
  for (const Slice& s : merged(std::move(slices), step_us)) {
    // [row, kind, name, begin, length, KiB, exposed, merged], in us
    list.push_back({s.row, static_cast<int>(s.kind), used[names.all()[s.name]], tenth(static_cast<double>(s.begin_us)),
                    tenth(static_cast<double>(s.length_us)), s.bytes_kib, tenth(static_cast<double>(s.exposed_us)), s.num});
  }
  return {{"rank", sums.summary().rank}, {"step", step},        {"step_us", tenth(step_us)}, {"is_cut", is_cut},
          {"rows", row_names},           {"names", used.all()}, {"slices", std::move(list)}, {"costly", std::move(costly)}};
}

}  // namespace

double TraceSummary::hidden_percent() const { return busy_ms > 0 ? 100 * std::max(0.0, 1 - exposed_ms / busy_ms) : 100; }

std::vector<std::string> trace_files(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<std::pair<long, std::string>> found;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    static constexpr std::string_view kPrefix = "trace-rank", kSuffix = ".json";
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const std::string digits = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
    if (digits.empty() || digits.size() > 9 || !std::ranges::all_of(digits, [](unsigned char c) { return std::isdigit(c) != 0; })) continue;
    found.emplace_back(std::stol(digits), entry.path().string());
  }
  require<ConfigError>(!error, "{}: {}", path, error.message());
  std::ranges::sort(found);
  std::vector<std::string> files;
  for (auto& [rank, file] : found) files.push_back(std::move(file));
  return files;
}

TraceSummary summarize_trace(const std::string& file) { return summed(file).summary(); }

std::string summary_line(const TraceSummary& s) {
  return fmt::format(
      "rank {}: {:.2f} ms traced, {} collectives of {:.1f} MiB took {:.2f} ms, exposed {:.2f} ms ({:.1f} % of the time), hidden {:.0f} %",
      s.rank, s.span_ms, s.num_collectives, static_cast<double>(s.bytes) / (1 << 20), s.busy_ms, s.exposed_ms,
      s.span_ms > 0 ? 100 * s.exposed_ms / s.span_ms : 0, s.hidden_percent());
}

Json traces_json(const std::vector<std::string>& files, std::int64_t num_timelines, std::vector<std::string>& left_out) {
  std::vector<TraceSums> all;
  std::vector<std::string> readable;  // the files of `all`
  Json summaries = Json::array();
  for (const std::string& file : files) {
    try {
      all.push_back(summed(file));
    } catch (const ConfigError& error) {
      left_out.emplace_back(error.what());
      continue;
    }
    readable.push_back(file);
    const TraceSummary s = all.back().summary();
    summaries.push_back({{"rank", s.rank},
                         {"span_ms", tenth(s.span_ms)},
                         {"num", s.num_collectives},
                         {"mib", tenth(static_cast<double>(s.bytes) / (1 << 20))},
                         {"busy_ms", tenth(s.busy_ms)},
                         {"exposed_ms", tenth(s.exposed_ms)},
                         {"hidden", tenth(s.hidden_percent())}});
  }
  if (all.empty()) return nullptr;
  // The first file, then alternately the ranks that wait least and most.
  std::vector<std::size_t> by_wait(all.size()), chosen{0};
  for (std::size_t i = 0; i < by_wait.size(); ++i) by_wait[i] = i;
  std::ranges::sort(by_wait, {}, [&](std::size_t i) { return all[i].summary().exposed_ms; });
  for (std::size_t i = 0; i < by_wait.size() && std::ssize(chosen) < num_timelines; ++i) {
    const std::size_t next = i % 2 == 0 ? by_wait[i / 2] : by_wait[by_wait.size() - 1 - i / 2];
    if (std::ranges::find(chosen, next) == chosen.end()) chosen.push_back(next);
  }
  std::ranges::sort(chosen);
  Json timelines = Json::array();
  for (const std::size_t i : chosen) {
    try {
      timelines.push_back(timeline(readable[i], all[i]));
    } catch (const ConfigError& error) {  // replaced by a new launch meanwhile
      left_out.emplace_back(error.what());
    }
  }
  return {{"ranks", std::move(summaries)}, {"timelines", std::move(timelines)}};
}

}  // namespace mica::report
