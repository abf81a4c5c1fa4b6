// SPDX-License-Identifier: Apache-2.0
#include "mica/train/run_training.hpp"

#include <algorithm>
#include <chrono>
#include <iostream>

#include "mica/comm/gpu_groups.hpp"
#include "mica/device/gpu.hpp"
#include "mica/launch/checks.hpp"
#include "mica/launch/world_size.hpp"
#include "mica/plan/memory_plan.hpp"
#include "mica/tensor/cuda_kernels.hpp"
#include "mica/train/config.hpp"
#include "mica/train/model_source.hpp"
#include "mica/train/run_folder.hpp"
#include "mica/train/start_times.hpp"
#include "mica/train/trainer.hpp"

namespace mica::train {
namespace {

constexpr const char* kHelp = R"(mica-train CONFIG [--section.key=value ...] [--check]
mica-train --model.init_from=FOLDER --data.train=FILES [--section.key=value ...] [--check]

Trains a model with parameters, gradients and optimizer state sharded over MPI ranks.

  CONFIG                an INI file; configs/ has examples. Optional with model.init_from, which then gives the model;
                        other keys have their defaults
  --section.key=value   sets a key and overrides the config file; --section.key value is the same
  --check               checks everything and stops: prints the whole config, batch sizes, mesh, units and the memory plan to
                        standard output, and warns if this machine lacks the memory or the disk space, or cannot write
                        the run's folder
  -h, --help, --version

  mpirun -np 4 mica-train configs/gpt2-tiny-text.cfg --data.train=corpus.train.h5 --train.steps=200
  mpirun -np 4 mica-train configs/gpt2-124m.cfg --fsdp.strategy=hybrid_shard --mesh.shard_size=2

More ranks than cores: export OMPI_MCA_rmaps_base_oversubscribe=1 (scripts/environment.sh sets everything for one machine).
To resume a run that was stopped or killed, start the same command again: it continues from its newest complete checkpoint.

Exit status: 0 done; 2 an error in the config or its files; 3 a failure at run time; 75 saved and stopped by a signal (SIGTERM,
SIGINT, SIGUSR1, SIGUSR2, SIGHUP), by train.max_hours or by the end of a Slurm job: requeue it. A second signal ends a run at once.

In a config file, # begins a comment at the start of a line or after white space. Values, and items of lists, may be in double
quotes, with \" and \\ for a quote and a backslash: data.train = "a,b.h5",c.h5 names two files. Setting a key twice is an error.

Keys, with their defaults:
)";

struct Command {
  std::string config_path;  ///< empty: none
  std::vector<std::string> overrides;
  bool check = false;
};

Command parse_command(const std::vector<std::string>& arguments) {
  Command command;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--check") {
      command.check = true;
    } else if (argument.starts_with("--") && argument.find('=') == std::string::npos) {
      const bool has_value = i + 1 < arguments.size() && !arguments[i + 1].starts_with("--");
      command.overrides.push_back(has_value ? argument + "=" + arguments[++i] : argument);
    } else if (argument.starts_with("--")) {
      require<ConfigError>(!argument.starts_with("--check="), "{} has a value, but --check takes none; see mica-train --help", argument);
      command.overrides.push_back(argument);
    } else {
      require<ConfigError>(!argument.starts_with("-"), "unknown flag {}, expected --section.key=value; see mica-train --help", argument);
      require<ConfigError>(command.config_path.empty(), "two config files, {} and {}: give one", command.config_path, argument);
      command.config_path = argument;
    }
  }
  return command;
}

/// Rank 0 reads the file; the others get its text or its error.
ConfigText read_on_rank_0(const HostComm& comm, const std::string& path) {
  if (path.empty()) return {};
  return {path, comm.from_first_rank([&] { return read_config_text(path).text; })};
}

LogLevel log_level(const std::string& name) {
  return name == "debug" ? LogLevel::debug : name == "info" ? LogLevel::info : name == "warn" ? LogLevel::warn : LogLevel::error;
}

/// Checks of the machines, before anything is read. [Note: launch checks]
void check_machines(launch::LaunchChecks& checks, const mpi::Communicator& world, const std::vector<std::string>& arguments) {
  checks.run({launch::same_arguments(arguments), launch::clocks(), launch::shared_memory()});
  if (checks.num_nodes() > 1) checks.run({launch::node_speed(), launch::link_speed(world)});
}

}  // namespace

std::string training_help(const std::vector<std::string>& /*arguments*/) { return kHelp + config_help(); }

std::string build_text() {
  std::string text = fmt::format("  {}\n  compiler  {}\n  CUDA      {}\n  NCCL      {}\n  cuDNN     {}\n", mpi::Session::library_version(),
                                 __VERSION__, cuda_version_text(), nccl_version_text(), cudnn_version_text());
  for (const GpuInfo& gpu : list_gpus()) {
    text += fmt::format("  GPU {}     {} ({}), compute capability {}.{}, {}\n", gpu.index, gpu.name, gpu.pci_bus_id, gpu.compute_major,
                        gpu.compute_minor, plan::format_bytes(gpu.memory_bytes));
  }
  return text;
}

ExitCode run_training(App& app) {
  const bool is_main = app.world.rank() == 0;
  StartTimes times(app.session);
  app.comm.agree([&] { launch::check_started_by_launcher(app.world.num_ranks()); });
  launch::LaunchChecks checks(app.world);
  check_machines(checks, app.world, app.arguments);
  times.end("looking at the machines");
  Command command;
  app.comm.agree([&] { command = parse_command(app.arguments); });
  const ConfigText text = read_on_rank_0(app.comm, command.config_path);
  Config config;
  app.comm.agree([&] {
    config = parse_config(text, command.overrides);
    require<ConfigError>(!command.config_path.empty() || !config.model.init_from.empty(),
                         "no config file: mica-train CONFIG [--section.key=value ...]; it is optional only with "
                         "--model.init_from=FOLDER; see mica-train --help");
  });
  take_model_keys(app.comm, config);
  app.comm.agree([&] { check_config(config); });
  const std::chrono::milliseconds timeout(static_cast<std::int64_t>(config.mesh.timeout * 1e3));
  app.watchdog.set_timeout(std::max<std::chrono::milliseconds>(timeout, Watchdog::kFileTimeout));  // until steps begin
  const Logger logger = is_main ? Logger::to_stderr(log_level(config.log.level), "")
                                : Logger::to_stderr(LogLevel::warn, fmt::format("rank {}", app.world.rank()));
  times.end("config");
  if (command.check) {
    checks.tell(logger);
    const Trainer trainer(app, config, find_start(app.comm, config), logger, times);
    trainer.print_start(IniKeys::all, [](const std::string& text) { std::cout << text << '\n'; });
    trainer.warn_of_refusals();
    return ExitCode::done;
  }
  RunFolder folder(app, config, logger);
  checks.run({folder.sharing_check()});
  checks.tell(folder.logger());
  StartPoint start = find_start(app.comm, config);
  times.end("run folder");
  Trainer trainer(app, config, std::move(start), folder.logger(), times);
  trainer.print_start(IniKeys::changed, [&](const std::string& text) { folder.logger().info("{}", text); });
  return trainer.run(folder);
}

}  // namespace mica::train
