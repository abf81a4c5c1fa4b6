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

Forecasts what a run would need on a cluster that you do not have: memory per rank, FLOPs, bytes sent, step time, exposed communication,
MFU and tokens/s. Needs no MPI, no GPU and no data files. The runtime enqueues three steps on a device without memory; a simulator then
plays them with the hardware's rates.

  CONFIG                 a config of mica-train; --section.key=value sets a key and overrides the file; it may be left out beside
                         --model.init_from=FOLDER, which then gives the model
  --ranks=N              1 to 16384
  --ranks-per-node=M     default: as the hardware says; more ranks on a CPU node than that share its cores and memory
  --hardware=NAME|FILE   a100-40, a100-80, h100-80, h200, cpu-epyc-9654, cpu-xeon-8480, or a JSON file of the same form;
                         mica-bench gemm --hardware-out FILE, then comm --hardware-out FILE, write one for this machine
  --software=NAME|FILE   times the kernels of another program under Mica's schedule, to compare with measurements of that program:
                         pytorch, pytorch-compiled, pytorch-2022, llm-foundry-2023, fms-2024, or a JSON file of the same form;
                         default: Mica's own kernels (mica, on GPUs only)
  --node-gbps=G          network bandwidth of a node in each direction, in Gb/s; default: as the hardware says
  --json                 one JSON object instead of the table
  --largest=false        do not search for the largest micro-batch that fits, which takes most of the time
  --svg=FILE             draw step time and MFU from one node to N ranks, with a line for each strategy that fits
  --advise               instead of the table, list the fastest choices of strategy, shard size, wrapping, activation
                         checkpointing and micro-batch, with the reason
  --print-hardware       print the hardware's JSON, with the source of each constant, and stop
  -h, --help, --version

  mica-plan configs/gpt2-124m.cfg --ranks=64 --hardware=h100-80
  mica-plan configs/gpt2-124m.cfg --ranks=16 --hardware=a100-80 --node-gbps=100 --fsdp.strategy=hybrid_shard
  mica-plan configs/gpt2-124m.cfg --ranks=64 --hardware=h100-80 --advise

How to read the figures: if a rank waits for communication much of the time, try larger micro-batches, hybrid_shard, or shard_grad_op if
memory allows. docs/planning.md compares forecasts with steps of Mica on an H200 and an H100, and with measurements of other programs.

Exit status: 0 done, even if the run does not fit; 2 an error in flags, config or hardware, or --advise or --svg finds nothing that fits;
3 a file cannot be written.
)";

struct PlanRequest {
  std::string config_path, hardware, software, svg;
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
  constexpr std::array<std::string_view, 6> kWithValue{"--ranks", "--ranks-per-node", "--hardware", "--software", "--node-gbps", "--svg"};
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
    } else if (flag == "--software") {
      require<ConfigError>(!value.empty(), "--software needs a name or a file: {}", fmt::join(plan::software_names(), ", "));
      command.software = value;
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
  constexpr std::string_view kModel = "--model.init_from=";
  const bool has_model =
      std::ranges::any_of(command.overrides, [&](const auto& each) { return each.starts_with(kModel) && each != kModel; });
  require<ConfigError>(command.print_hardware || ((!command.config_path.empty() || has_model) && command.ranks > 0),
                       "mica-plan needs a config, or --model.init_from=FOLDER, and a number of ranks: mica-plan CONFIG --ranks=N "
                       "--hardware=NAME; see mica-plan --help");
  return command;
}

/// Computes with fewer threads than the hardware's file says, or with a smaller part of its cores.
void use_threads(int threads, double most, plan::Hardware& h) {
  const double part = std::min(most, static_cast<double>(threads) / h.threads);
  for (double* each : {&h.product_tflops.fp32, &h.product_tflops.tf32, &h.product_tflops.bf16, &h.attention.forward_tflops,
                       &h.attention.backward_tflops}) {
    *each *= part;
  }
  h.threads = threads;
}

/// A rank's part of a CPU node that more ranks share than its file says.
void share_among(int ranks_per_node, plan::Hardware& h) {
  if (h.is_gpu || ranks_per_node <= h.ranks_per_node) return;
  const double part = static_cast<double>(h.ranks_per_node) / ranks_per_node;
  for (double* each :
       {&h.memory_gib, &h.reserved_gib, &h.peak_tflops.fp32, &h.peak_tflops.tf32, &h.peak_tflops.bf16, &h.memory_gb_s, &h.in_node_gb_s}) {
    *each *= part;
  }
  h.ranks_per_node = ranks_per_node;
  h.rank_mtbf_hours /= part;  // the node's stays
  use_threads(std::max(1, static_cast<int>(h.threads * part)), part, h);
}

Cluster cluster_of(const PlanRequest& command, const Config& config) {
  Cluster cluster{.hardware = plan::find_hardware(command.hardware), .num_ranks = static_cast<int>(command.ranks)};
  cluster.ranks_per_node = command.ranks_per_node > 0 ? static_cast<int>(command.ranks_per_node) : cluster.hardware.ranks_per_node;
  cluster.ranks_per_node = std::min(cluster.ranks_per_node, cluster.num_ranks);
  if (!command.software.empty()) cluster.software = plan::find_software(command.software);
  if (command.node_gbps > 0) cluster.hardware.network_gbps = command.node_gbps;
  share_among(cluster.ranks_per_node, cluster.hardware);
  if (!cluster.hardware.is_gpu && config.mesh.threads > 0) use_threads(static_cast<int>(config.mesh.threads), 1, cluster.hardware);
  require<ConfigError>(cluster.num_ranks % cluster.ranks_per_node == 0,
                       "--ranks={} is not a multiple of the {} ranks of a node: choose a multiple, or set "
                       "--ranks-per-node",
                       cluster.num_ranks, cluster.ranks_per_node);
  return cluster;
}

Config read_config(const PlanRequest& command) {
  Config config = parse_config(command.config_path.empty() ? ConfigText{} : read_config_text(command.config_path), command.overrides);
  take_init_keys(*make_single_comm(), config);
  if (config.data.train.empty()) config.data.train = {"tokens that no plan reads"};
  check_config(config);
  return config;
}

std::vector<ScalingLine> scaling_lines(const Config& config, const Cluster& cluster) {
  std::vector<ScalingLine> lines;
  std::string refusal;
  bool is_too_large = false;
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
      try {
        const Forecast f = make_forecast(tried, part);
        is_too_large = is_too_large || !f.fits();
        if (f.fits()) line.points.push_back({ranks, f.step.seconds * 1e3, f.mfu});
      } catch (const ConfigError& error) {
        refusal = error.what();
      }
      if (ranks == cluster.num_ranks) break;
    }
    if (!line.points.empty()) lines.push_back(std::move(line));
  }
  require<ConfigError>(!lines.empty() || is_too_large, "{}", refusal);
  require<ConfigError>(!lines.empty(),
                       "no strategy fits on any number of ranks up to {}: use a smaller train.micro_batch, or "
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
  const auto& [choices, refused, num_too_large] = find_choices(config, cluster);
  require<ConfigError>(!choices.empty() || num_too_large > 0, "{}", refused.empty() ? "" : refused.front().reason);
  require<ConfigError>(!choices.empty(),
                       "nothing fits on {} ranks of {}: use more ranks, a smaller train.seq_len, or fsdp.cpu_offload (slower)",
                       cluster.num_ranks, cluster.hardware.name);
  constexpr std::size_t kShown = 10;
  const std::string left_out = left_out_of_step(choices.front().forecast, cluster.hardware);
  out << fmt::format("{} choices fit on {} ranks; the fastest first{}{}\n", choices.size(), cluster.num_ranks,
                     left_out.empty() ? "" : "; times leave out ", left_out);
  for (std::size_t i = 0; i < std::min(kShown, choices.size()); ++i) {
    const Forecast& f = choices[i].forecast;
    out << fmt::format(
        "{:>2}  {:>8.0f} tokens/s per rank, MFU {:>4.1f} %, step {:.1f} ms\n    {}\n    "
        "{}\n",
        i + 1, f.tokens_per_s_per_rank, 100 * f.mfu, f.step.seconds * 1e3, choices[i].keys, why(f));
  }
  for (const Refusal& each : refused) out << fmt::format("refused: {}\n    {}\n", each.keys, each.reason);
}

}  // namespace

std::string plan_help(const std::vector<std::string>& /*arguments*/) { return kPlanHelp; }

ExitCode run_plan(const std::vector<std::string>& arguments, std::ostream& out) {
  const PlanRequest command = parse_plan_request(arguments);
  if (command.print_hardware) {
    static_cast<void>(plan::find_hardware(command.hardware));
    const std::string_view text = plan::hardware_text(command.hardware);
    require<ConfigError>(!text.empty(), "--print-hardware prints the hardware files that come with Mica, {}; {} is your own",
                         fmt::join(plan::hardware_names(), ", "), command.hardware);
    out << text;
    return ExitCode::done;
  }
  const Config config = read_config(command);
  const Cluster cluster = cluster_of(command, config);
  if (command.advise) {
    print_advice(config, cluster, out);
  } else {
    const Forecast forecast = make_forecast(config, cluster);
    const std::int64_t largest = command.largest ? largest_micro_batch(config, cluster) : -1;
    out << (command.json ? forecast_json(forecast, cluster.hardware, largest) : forecast_table(forecast, cluster.hardware, largest));
  }
  if (!command.svg.empty()) {
    const std::string& planned = command.config_path.empty() ? config.model.init_from : command.config_path;
    write_svg(command.svg, scaling_svg(fmt::format("{} on {}", planned, cluster.hardware.name), scaling_lines(config, cluster)));
  }
  return ExitCode::done;
}

}  // namespace mica::train
