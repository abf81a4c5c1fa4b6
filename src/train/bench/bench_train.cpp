// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "mica/train/slow_path_notices.hpp"
#include "mica/train/start_plan.hpp"

#include "bench_model.hpp"
#include "benches.hpp"
#include "command_line.hpp"
#include "machine_bound.hpp"
#include "product_bound.hpp"
#include "report.hpp"
#include "timing.hpp"

namespace mica::train::bench {
namespace {

constexpr const char* kTrainHelp = R"(mica-bench train [--flags] [--section.key=value ...]

Times optimizer steps of a GPT-2 on random tokens with mica-train's code: sharded over all ranks, AdamW, clipping at 1. Reports the median
step time, tokens/s over all ranks, memory per rank, and two limits, both measured with all ranks computing at once:
  machine_percent  the share of the step that the model's FLOPs need at the best rate of any library on this machine (oneDNN, OpenBLAS,
                   BLIS, MKL), for the model's shapes, whole or in chunks of rows, with operands as cold as in a step
  bound_percent    the share that plain oneDNN needs for the products as Mica cuts them, with operands in the cache
100 % is the limit; products, and for machine_percent causal attention, are all that counts. On a GPU it reports the model's TFLOP/s
instead (per token 6 * parameters + 6 * layers * width * seq for attention). slow_paths lists shapes for which rank 0's libraries fell
back to slower code, with the reason.

  export OMP_NUM_THREADS=1
  mpirun -np 2 mica-bench train --model gpt2-124m --batch 4 --seq 256
  mica-bench train --model gpt2-124m --batch 16 --seq 1024 --dtype bf16 --mesh.device=cuda
  mpirun -np 4 mica-bench train --model gpt2-30m --strategy hybrid_shard --mesh.shard_size=2
  python3 scripts/peers/node_memory.py mpirun -np 2 mica-bench train --no-bound ...     peak memory of the whole job

Any key of mica-train can be given as well: --fsdp.wrap=none --mesh.streams=threaded --train.deterministic=true
)";

struct TrainOptions {
  RunOptions run{.model = "char-tiny", .batch = 4, .seq = 64, .steps = 6};
  bool no_bound = false;
};

/// What one rank saw.
struct Measured {
  std::vector<double> step_s;  // of the slowest rank
  double comm_share = 0;
  double first_loss = 0, last_loss = 0;
  std::int64_t peak_pool_bytes = 0, peak_rss_bytes = 0;
  std::int64_t num_params = 0;
  std::vector<ProductShape> products;  // of one step
  int num_threads = 1;
  std::string kernels;
  std::vector<std::string> slow_paths;
  bool on_gpu = false;
  std::int64_t planned_bytes = 0;
  std::string recompute;
};

po::options_description flags_of(TrainOptions& options) {
  po::options_description flags("Flags");
  add_run_flags(flags, options.run);
  auto add = flags.add_options();
  add("no-bound", po::bool_switch(&options.no_bound), "do not time the matrix products alone");
  return flags;
}

TrainOptions parse(const App& app, const Arguments& arguments) {
  TrainOptions options;
  read_flags(app, take_keys(arguments, options.run), flags_of(options));
  app.comm.agree([&] { require<ConfigError>(options.run.steps >= 1, "--steps={}, expected at least 1", options.run.steps); });
  return options;
}

std::int64_t num_params(const fsdp::Root& root) {
  std::int64_t numel = 0;
  for (const fsdp::Unit* unit : root.units()) {
    for (const fsdp::UnitParameter& p : unit->storage()->parameters()) numel += p.parameter->shape.numel();
  }
  return numel;
}

Measured measure(const App& app, const TrainOptions& options, const Config& config) {
  BenchRun run(app, config);
  Device& device = run.device;
  require<ConfigError>(!device.gpu || options.run.warmup >= 2,
                       "--warmup={}, expected at least 2 on a GPU: a step is timed while the one before it still runs", options.run.warmup);
  Measured measured{.num_params = num_params(*run.model.root),
                    .num_threads = device.num_threads,
                    .kernels = device.kernels->description(),
                    .on_gpu = device.gpu.has_value(),
                    .planned_bytes = make_start_plan(config, device, run.model, run.plan).memory.peak};
  measured.recompute = run.model.context.recompute == nn::Recompute::none ? "none" : "cheap";
  double comm_begin_ms = 0;
  double begin = 0, step_begin = 0;
  std::vector<double> step_s;
  StepFigures first, last;
  for (std::int64_t step = 1; step <= options.run.warmup + config.train.steps; ++step) {
    if (step == options.run.warmup) device.kernels->record_products(&measured.products);
    if (step == options.run.warmup + 1) {
      device.kernels->record_products(nullptr);
      app.world.barrier();
      comm_begin_ms = device.device_mesh->communication_ms();
      begin = step_begin = now_s();
    }
    // As in a real run, the next step is enqueued while a GPU works on this one. run() returns when the step before is done, so the time
    // between two returns is the time of one step.
    StepFigures figures = run.runner.run(step, config.optim.lr);
    const double step_end = now_s();
    if (step > options.run.warmup) step_s.push_back(step_end - std::exchange(step_begin, step_end));
    if (step == 1) first = figures;
    last = std::move(figures);
  }
  measured.comm_share = (device.device_mesh->communication_ms() - comm_begin_ms) * 1e-3 / (step_begin - begin);
  const std::vector<double> losses = mean_losses(run.model, {&first, &last});
  measured.first_loss = losses[0];
  measured.last_loss = losses[1];
  for (const double seconds : step_s) measured.step_s.push_back(slowest(app.world, seconds));
  measured.peak_pool_bytes = device.pool->stats().peak;
  measured.peak_rss_bytes = process_bytes("VmHWM");
  for (const SlowPath& path : slow_paths(*device.kernels)) measured.slow_paths.push_back(slow_path_text(path));
  return measured;
}

std::vector<std::int64_t> in_mib(std::vector<std::int64_t> bytes) {
  for (std::int64_t& b : bytes) b = (b + (1 << 19)) >> 20;
  return bytes;
}

}  // namespace

std::string train_help() {
  TrainOptions defaults;
  return help_text(kTrainHelp, flags_of(defaults));
}

ExitCode bench_train(App& app, const Arguments& arguments) {
  const TrainOptions options = parse(app, arguments);
  Config config;
  app.comm.agree([&] { config = make_config(options.run); });
  const Measured m = measure(app, options, config);
  const double step_s = median(m.step_s);
  const int ranks = app.world.num_ranks();
  const auto tokens = static_cast<double>(config.train.micro_batch * config.train.seq_len * ranks);

  Row row{{"bench", "train"},
          {"model", options.run.model},
          {"params", m.num_params},
          {"dtype", config.fsdp.param_dtype},
          {"strategy", config.fsdp.strategy},
          {"activation_checkpointing", config.fsdp.activation_checkpointing},
          {"recompute", m.recompute},
          {"deterministic", config.train.deterministic},
          {"keys", options.run.overrides},
          {"ranks", ranks},
          {"threads", m.num_threads},
          {"batch", config.train.micro_batch},
          {"seq", config.train.seq_len},
          {"steps", config.train.steps},
          {"step_ms", rounded(1e3 * step_s)},
          {"tokens_per_s", rounded(tokens / step_s, 1)}};
  row["comm_share"] = rounded(m.comm_share, 3);
  if (m.on_gpu) {
    const double flops = 6.0 * static_cast<double>(m.num_params) * tokens + attention_flops(config) * ranks;
    row["model_tflop_per_s"] = rounded(flops / step_s * 1e-12, 2);
    row["planned_bytes"] = gather_numbers(app.world, m.planned_bytes);
  } else if (!options.no_bound) {
    const double bound_s = product_bound_s(app.world, m.products);
    row["bound_ms"] = rounded(1e3 * bound_s);
    row["bound_percent"] = rounded(100 * bound_s / step_s, 1);
    row["bound_gflop_per_s"] = rounded(flops_of(m.products) / bound_s * 1e-9, 1);
    FastestLibrary libraries(app.world, m.num_threads, operand_bytes(m.peak_pool_bytes));
    const std::int64_t tokens_of_rank = config.train.micro_batch * config.train.seq_len;
    const MachineBound machine = machine_bound(libraries, model_products(m.products, tokens_of_rank), attention_flops(config));
    row["machine_ms"] = rounded(1e3 * machine.seconds);
    row["machine_percent"] = rounded(100 * machine.seconds / step_s, 1);
    row["machine_gflop_per_s"] = rounded(machine.flops / machine.seconds * 1e-9, 1);
  }
  row["peak_pool_bytes"] = gather_numbers(app.world, m.peak_pool_bytes);
  row["peak_rss_mib"] = in_mib(gather_numbers(app.world, m.peak_rss_bytes));
  row["first_loss"] = rounded(m.first_loss, 4);
  row["last_loss"] = rounded(m.last_loss, 4);
  row["kernels"] = m.kernels;
  row["slow_paths"] = m.slow_paths;
  Report report(app.world.rank() == 0);
  report.add(row);
  report.print_table();
  return ExitCode::done;
}

}  // namespace mica::train::bench
