// SPDX-License-Identifier: Apache-2.0
#include "mica/report/run_report.hpp"

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <ostream>
#include <string_view>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "mica/core/version.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/plan/memory_plan.hpp"
#include "mica/train/config.hpp"

#include "page.hpp"
#include "run_data.hpp"
#include "trace_data.hpp"

namespace mica::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kHelp =
    R"(mica-report RUN... --out=FILE.html     writes one page about one or more runs, which any browser opens without a network
mica-report traces RUN|FILE...         prints for each traced rank how much of its communication was hidden

RUN is a run's folder, such as runs/shakespeare. The page shows loss and validation loss, speed, where a step's time goes, ranks that
the others wait for, memory compared with the plan, a traced step as a timeline, saves, restarts and warnings, and how the runs' configs
differ; docs/report.md explains each view. It needs metrics.jsonl; log.txt, config.resolved.cfg and the trace-rank*.json of
--log.trace=FIRST-LAST add to it. A run that is still training can be reported too.

  --out=FILE             the page to write; an existing file is replaced, a link, pipe or device is written to
  --gflops-per-rank=G    what this machine's matrix products reach alone, to show speed in % of that bound:
                         bound_gflop_per_s of mica-bench train
  -h, --help, --version

Examples
  mica-report runs/shakespeare --out=shakespeare.html
  mica-report runs/lr-1e-3 runs/lr-3e-4 --out=lr.html     curves in one picture, and how the configs differ
  mica-report traces runs/shakespeare

Exit status: 0 done; 2 an error in the command, or a folder without a run; 3 a failure at run time.
)";

/// All runs share the page's 2 MB.
constexpr std::size_t kMostRuns = 16;

struct Command {
  std::vector<std::string> runs;
  std::string out;
  std::optional<double> gflops;
};

Command parse(const std::vector<std::string>& arguments) {
  Command command;
  static constexpr std::string_view kOut = "--out=", kGflops = "--gflops-per-rank=";
  for (const std::string& argument : arguments) {
    if (argument.starts_with(kOut)) {
      command.out = argument.substr(kOut.size());
    } else if (argument.starts_with(kGflops)) {
      const std::string text = argument.substr(kGflops.size());
      double value = 0;
      const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      require<ConfigError>(error == std::errc{} && rest == text.data() + text.size() && value > 0 && value < 1e9,
                           "{} is not a number above 0; expected the GFLOP/s that mica-bench train prints as bound_gflop_per_s", argument);
      command.gflops = value;
    } else {
      require<ConfigError>(!argument.starts_with("-"), "unknown option {}; see mica-report --help", argument);
      command.runs.push_back(argument);
    }
  }
  require<ConfigError>(!command.runs.empty(), "mica-report takes the folders of runs, got none; see mica-report --help");
  require<ConfigError>(!command.out.empty(), "--out=FILE.html is missing: say where to write the page");
  require<ConfigError>(command.runs.size() <= kMostRuns, "{} runs, expected at most {} in one page", command.runs.size(), kMostRuns);
  return command;
}

/// The names of the runs' folders, or the whole path where two names are the same.
std::vector<std::string> names_of(const std::vector<std::string>& runs) {
  std::map<std::string, int> counts;
  const auto name_of = [](const std::string& run) {
    std::error_code error;  // reading the run says what is wrong with a folder
    const fs::path path = fs::weakly_canonical(run, error);
    return error ? run : path.filename().string();
  };
  for (const std::string& run : runs) ++counts[name_of(run)];
  std::vector<std::string> names;
  for (const std::string& run : runs) names.push_back(counts[name_of(run)] == 1 ? name_of(run) : run);
  return names;
}

/// How the runs' configs differ; for a single run, how its config differs from the defaults.
Json config_table(const std::vector<std::string>& runs, const std::vector<std::string>& names) {
  std::vector<train::Config> configs;
  for (const std::string& run : runs) {
    try {
      configs.push_back(train::parse_config(train::read_config_text(run + "/config.resolved.cfg"), {}));
    } catch (const Error& error) {  // from another version, or missing
      return {{"note", fmt::format("Configs are not compared: {}", error.what())}};
    }
  }
  const train::Config base = configs.size() == 1 ? train::Config() : configs.front();
  std::map<std::string, std::vector<std::string>> rows;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    for (const train::KeyChange& change : train::compare_configs(base, configs[i])) {
      auto [row, is_new] = rows.try_emplace(change.key, configs.size(), change.before);
      row->second[i] = change.after;
    }
  }
  Json table{{"names", names}, {"rows", Json::array()}};
  for (const auto& [key, values] : rows) {
    Json row{key};
    for (const std::string& value : values) row.push_back(value);
    table["rows"].push_back(std::move(row));
  }
  return table;
}

/// @throws ConfigError if there is no folder for the page, or none that a file can be made in
void check_folder(const std::string& out) {
  const std::string folder = io::parent_directory(out);
  std::error_code error;
  require<ConfigError>(fs::is_directory(folder, error), "the folder {} of --out={} does not exist; make it first", folder, out);
  const int access_error = ::access(folder.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
  require<ConfigError>(access_error == 0, "cannot write to the folder of --out={}: {}; choose another", out, errno_text(access_error));
}

/// Whether the page becomes a file, which is replaced whole. A pipe, a device or a link is written to: renaming a file over it would
/// destroy it.
bool makes_file(const std::string& out) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(out, error);
  return !fs::exists(status) || fs::is_regular_file(status);
}

void write_through(const std::string& path, const std::string& page) {
  std::ofstream file(path);
  file << page;
  file.close();
  require<IoError>(file.good(), "cannot write {}: {}; choose another --out", path, errno_text(errno));
}

ExitCode print_traces(const std::vector<std::string>& paths, std::ostream& out) {
  require<ConfigError>(!paths.empty(), "mica-report traces takes the folders of runs or their trace-rank*.json, got none");
  for (const std::string& path : paths) {
    const std::vector<std::string> files = trace_files(path);
    require<ConfigError>(!files.empty(), "{}: no trace-rank*.json; a run with --log.trace=FIRST-LAST writes them", path);
    for (const std::string& file : files) out << (paths.size() > 1 ? path + ": " : "") << summary_line(summarize_trace(file)) << "\n";
  }
  return ExitCode::done;
}

}  // namespace

std::string report_help(const std::vector<std::string>& /*arguments*/) { return std::string(kHelp); }

std::string report_build_text() { return "  uPlot 1.6.32 (MIT License) draws the curves\n"; }

ExitCode run_report(const std::vector<std::string>& arguments, std::ostream& out) {
  if (!arguments.empty() && arguments[0] == "traces") return print_traces({arguments.begin() + 1, arguments.end()}, out);
  const Command command = parse(arguments);
  const bool is_file = makes_file(command.out);
  if (is_file) check_folder(command.out);
  const auto num_runs = static_cast<std::int64_t>(command.runs.size());
  const Detail whole;
  const Detail detail{.num_points = whole.num_points / num_runs,
                      .num_columns = num_runs == 1 ? whole.num_columns : whole.num_columns / 2 / num_runs + 50,
                      .num_rows = num_runs == 1 ? whole.num_rows : whole.num_rows / 2,
                      .num_traced_ranks = num_runs == 1 ? whole.num_traced_ranks : 1};
  const std::vector<std::string> names = names_of(command.runs);
  Json report{{"made_by", fmt::format("mica-report {}", full_version())},
              {"gflops_per_rank", command.gflops ? Json(*command.gflops) : Json(nullptr)},
              {"runs", Json::array()},
              {"config", config_table(command.runs, names)}};
  for (std::size_t i = 0; i < command.runs.size(); ++i) {
    Json run = run_data(command.runs[i], detail);
    run["name"] = names[i];
    report["runs"].push_back(std::move(run));
  }
  const std::string page = page_with(report.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!is_file) {  // it may be where `out` goes: nothing follows the page
    write_through(command.out, page);
    return ExitCode::done;
  }
  io::write_file_atomically(command.out, page);
  out << fmt::format("{}: {}, {}\n", command.out, num_runs == 1 ? "1 run" : fmt::format("{} runs", num_runs),
                     plan::format_bytes(static_cast<std::int64_t>(page.size())));
  return ExitCode::done;
}

}  // namespace mica::report
