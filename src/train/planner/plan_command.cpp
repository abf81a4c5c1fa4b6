// SPDX-License-Identifier: Apache-2.0
#include "mica/train/plan_command.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <ostream>
#include <string_view>

#include <fmt/ranges.h>

#include "mica/comm/host_comm.hpp"
#include "mica/train/forecast.hpp"
#include "mica/train/model_source.hpp"

#include "advice.hpp"
#include "plan_report.hpp"
#include "scaling_svg.hpp"

namespace mica::train {
namespace {

constexpr const char* kPlanHelp = R"(mica-plan CONFIG --ranks=N --hardware=NAME|FILE [--flags] [--section.key=value ...]

Says what a training would take, before there is a cluster to run it on: memory of a rank, FLOPs, bytes on the wire, step time, exposed
communication, MFU and tokens/s. Needs no MPI, no GPU and no data files. It lets the runtime enqueue three steps on a device without
memory, and simulates what was enqueued with the hardware's rates.

  CONFIG                 what mica-train would get; --section.key=value sets a key over the file
  --ranks=N              1 to 16384
  --ranks-per-node=M     of the hardware, if it is not given
  --hardware=NAME|FILE   a100-40, a100-80, h100-80, h200, cpu-epyc-9654, cpu-xeon-8480, or a JSON file like theirs;
                         mica-bench gemm --hardware-out FILE, and then comm, measure this machine
  --node-gbps=G          what a node sends and receives over the network, in Gb/s; of the hardware, if it is not given
  --json                 one JSON object instead of the table
  --largest=false        does not look for the largest micro-batch that fits, which takes most of the time
  --svg=FILE             draws step time and MFU from one node to N ranks, with a line for each strategy that fits
  --advise               instead of the table, ranks strategies, shard sizes, wrapping, recomputation and micro-batches, and says why
  --print-hardware       prints the hardware's JSON, with the source of each constant, and stops
  -h, --help, --version

  mica-plan configs/gpt2-124m.cfg --ranks=64 --hardware=h100-80
  mica-plan configs/gpt2-124m.cfg --ranks=16 --hardware=a100-80 --node-gbps=100 --fsdp.strategy=hybrid_shard
  mica-plan configs/gpt2-124m.cfg --ranks=64 --hardware=h100-80 --advise

How to read the figures: a rank that waits for communication much of the time wants larger micro-batches, hybrid_shard, or
shard_grad_op if memory allows. Forecasts are optimistic: they take products at the best rate that was measured anywhere. Beside published
measurements of 2023 they are 20 to 50 % too fast on A100, and more on H100 (docs/planning.md). Compare ways with each other.

Exit status: 0 done, also if the training does not fit; 2 an error in flags, config or hardware, or nothing fits that --advise or --svg
tries; 3 a file that cannot be written.
)";

struct PlanRequest {
  std::string config_path, hardware, svg;
  std::vector<std::string> overrides;
  std::int64_t ranks = 0, ranks_per_node = 0;
  double node_gbps = 0;
  bool json = false, advise = false, print_hardware = false, largest = true;
};

std::int64_t whole_number(const std::string& flag, const std::string& text, std::int64_t most) {
  std::int64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  require<ConfigError>(error == std::errc{} && rest == text.data() + text.size() && number >= 1 && number <= most,
                       "{}={}, expected a whole number from 1 to {}", flag, text, most);
  return number;
}

double positive_number(const std::string& flag, const std::string& text) {
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  require<ConfigError>(error == std::errc{} && rest == text.data() + text.size() && number > 0 && number <= 1e6,
                       "{}={}, expected a number above 0, at most 1e6", flag, text);
  return number;
}

bool truth(const std::string& flag, const std::string& text) {
  require<ConfigError>(text.empty() || text == "true" || text == "false", "{}={}, expected true or false", flag, text);
  return text != "false";
}

constexpr std::int64_t kMostRanks = 16384;

PlanRequest parse_plan_request(const std::vector<std::string>& arguments) {
  PlanRequest command;
  constexpr std::array<std::string_view, 5> kWithValue{"--ranks", "--ranks-per-node", "--hardware", "--node-gbps", "--svg"};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("-")) {
      require<ConfigError>(command.config_path.empty(), "two config files, {} and {}: give one", command.config_path, argument);
      command.config_path = argument;
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    const bool is_key = flag.find('.') != std::string::npos,
               takes_value = is_key || std::ranges::find(kWithValue, flag) != kWithValue.end();
    std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    if (equals == std::string::npos && takes_value) {
      require<ConfigError>(i + 1 < arguments.size() && !arguments[i + 1].starts_with("--"), "{} needs a value: {}=...", flag, flag);
      value = arguments[++i];
    }
    if (is_key) {
      command.overrides.push_back(flag + "=" + value);
    } else if (flag == "--ranks") {
      command.ranks = whole_number(flag, value, kMostRanks);
    } else if (flag == "--ranks-per-node") {
      command.ranks_per_node = whole_number(flag, value, kMostRanks);
    } else if (flag == "--hardware") {
      command.hardware = value;
    } else if (flag == "--node-gbps") {
      command.node_gbps = positive_number(flag, value);
    } else if (flag == "--svg") {
      require<ConfigError>(!value.empty(), "--svg needs the name of a file: --svg=FILE");
      command.svg = value;
    } else if (flag == "--json") {
      command.json = truth(flag, value);
    } else if (flag == "--largest") {
      command.largest = truth(flag, value);
    } else if (flag == "--advise") {
      command.advise = truth(flag, value);
    } else if (flag == "--print-hardware") {
      command.print_hardware = truth(flag, value);
    } else {
      throw ConfigError(fmt::format("unknown flag {}; see mica-plan --help", flag));
    }
  }
  require<ConfigError>(!command.advise || !command.json, "--advise prints text only: leave out --json");
  require<ConfigError>(!command.hardware.empty(), "no hardware: --hardware={} or a file; see mica-plan --help",
                       fmt::join(plan::hardware_names(), "|"));
  require<ConfigError>(command.print_hardware || (!command.config_path.empty() && command.ranks > 0),
                       "mica-plan needs a config and a number of ranks: mica-plan CONFIG --ranks=N --hardware=NAME; see mica-plan --help");
  return command;
}

Cluster cluster_of(const PlanRequest& command) {
  Cluster cluster{.hardware = plan::find_hardware(command.hardware), .num_ranks = static_cast<int>(command.ranks)};
  cluster.ranks_per_node = command.ranks_per_node > 0 ? static_cast<int>(command.ranks_per_node) : cluster.hardware.ranks_per_node;
  cluster.ranks_per_node = std::min(cluster.ranks_per_node, cluster.num_ranks);
  if (command.node_gbps > 0) cluster.hardware.network_gbps = command.node_gbps;
  require<ConfigError>(cluster.num_ranks % cluster.ranks_per_node == 0,
                       "--ranks={} do not fill nodes of {}: choose a multiple, or set --ranks-per-node", cluster.num_ranks,
                       cluster.ranks_per_node);
  return cluster;
}

Config read_config(const PlanRequest& command) {
  Config config = parse_config(read_config_text(command.config_path), command.overrides);
  take_model_keys(*make_single_comm(), config);
  check_config(config);
  return config;
}

std::vector<ScalingLine> scaling_lines(const Config& config, const Cluster& cluster) {
  std::vector<ScalingLine> lines;
  for (const char* strategy : {"full_shard", "shard_grad_op", "hybrid_shard", "no_shard"}) {
    ScalingLine line{.name = strategy, .points = {}};
    Config tried = config;
    tried.fsdp.strategy = strategy;
    tried.fsdp.reshard_after_forward = "auto";
    tried.mesh.shard_size = "auto";
    tried.train.global_batch = 0;
    for (int ranks = cluster.ranks_per_node;; ranks = std::min(2 * ranks, cluster.num_ranks)) {
      Cluster part = cluster;
      part.num_ranks = ranks;
      const Forecast f = make_forecast(tried, part);
      if (f.fits()) line.points.push_back({ranks, f.step.seconds * 1e3, f.mfu});
      if (ranks == cluster.num_ranks) break;
    }
    if (!line.points.empty()) lines.push_back(std::move(line));
  }
  require<ConfigError>(!lines.empty(),
                       "no strategy fits on any number of ranks up to {}: a smaller train.micro_batch, or "
                       "fsdp.activation_checkpointing=block",
                       cluster.num_ranks);
  return lines;
}

void write_svg(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  require<IoError>(file.good(), "cannot write {}", path);
}

void print_advice(const Config& config, const Cluster& cluster, std::ostream& out) {
  const std::vector<Choice> choices = find_choices(config, cluster);
  require<ConfigError>(!choices.empty(), "nothing fits on {} ranks of {}: more ranks, fsdp.cpu_offload, or a smaller train.seq_len",
                       cluster.num_ranks, cluster.hardware.name);
  constexpr std::size_t kShown = 10;
  out << fmt::format("{} ways fit on {} ranks; the fastest first\n", choices.size(), cluster.num_ranks);
  for (std::size_t i = 0; i < std::min(kShown, choices.size()); ++i) {
    const Forecast& f = choices[i].forecast;
    out << fmt::format("{:>2}  {:>8.0f} tokens/s a rank, MFU {:>4.1f} %, step {:.1f} ms\n    {}\n    {}\n", i + 1, f.tokens_per_s_per_rank,
                       100 * f.mfu, f.step.seconds * 1e3, choices[i].keys, why(f));
  }
}

}  // namespace

std::string plan_help(const std::vector<std::string>& /*arguments*/) { return kPlanHelp; }

ExitCode run_plan(const std::vector<std::string>& arguments, std::ostream& out) {
  const PlanRequest command = parse_plan_request(arguments);
  if (command.print_hardware) {
    static_cast<void>(plan::find_hardware(command.hardware));
    const std::string_view text = plan::hardware_text(command.hardware);
    require<ConfigError>(!text.empty(), "--print-hardware prints hardware that comes with Mica, {}; {} is a file",
                         fmt::join(plan::hardware_names(), ", "), command.hardware);
    out << text;
    return ExitCode::done;
  }
  const Cluster cluster = cluster_of(command);
  const Config config = read_config(command);
  if (command.advise) {
    print_advice(config, cluster, out);
  } else {
    const Forecast forecast = make_forecast(config, cluster);
    const std::int64_t largest = command.largest ? largest_micro_batch(config, cluster) : -1;
    out << (command.json ? forecast_json(forecast, cluster.hardware, largest) : forecast_table(forecast, cluster.hardware, largest));
  }
  if (!command.svg.empty()) {
    write_svg(command.svg,
              scaling_svg(fmt::format("{} on {}", command.config_path, cluster.hardware.name), scaling_lines(config, cluster)));
  }
  return ExitCode::done;
}

}  // namespace mica::train
