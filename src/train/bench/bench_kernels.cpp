// SPDX-License-Identifier: Apache-2.0
#include "bench_model.hpp"
#include "benches.hpp"
#include "command_line.hpp"
#include "kernel_times.hpp"
#include "kernels_svg.hpp"
#include "output_file.hpp"
#include "report.hpp"

namespace mica::train::bench {
namespace {

constexpr const char* kKernelsHelp = R"(mica-bench kernels [--flags] [--section.key=value ...]

What each kind of task takes in the steps of `mica-bench train`, on rank 0 of a CPU run, beside what the machine could do: a copy of as
many bytes, call by call, and for tasks with products the fastest library for their shapes (oneDNN, OpenBLAS, BLIS, MKL), with all ranks
at once and operands as cold as in a step. Bytes are those of the tensors and the scratch memory that a task is given, once each; an
embedding uses only some rows of its table, so its figures are too high. of_limit is the larger of the copy's and the products' time, in
percent of the task's; where it is low and the share of the step is high, something can be gained. Streams are inline, so communication
is not hidden; a collective's time contains waiting for other ranks. The last row is what no task accounts for.

  export OMP_NUM_THREADS=1
  mpirun -np 2 mica-bench kernels --model gpt2-124m --batch 4 --seq 256 --svg=kernels.svg
  mpirun -np 2 mica-bench kernels --model char-tiny --batch 12 --seq 64 --steps 50

Any key of mica-train can be given as well.
)";

struct KernelsOptions {
  RunOptions run{.model = "char-tiny", .batch = 4, .seq = 64, .steps = 3};
  std::string svg;
};

po::options_description flags_of(KernelsOptions& options) {
  po::options_description flags("Flags");
  add_run_flags(flags, options.run);
  auto add = flags.add_options();
  add("svg", po::value(&options.svg), "write a picture: a roofline, and bandwidths beside those of copies");
  return flags;
}

Row row_of(const KernelTime& k, double step_s) {
  const bool has_products = k.flops > 0;
  return {{"bench", "kernels"},
          {"task", k.task},
          {"calls", rounded(k.calls)},
          {"ms", rounded(1e3 * k.seconds)},
          {"share", rounded(100 * k.seconds / step_s, 1)},
          {"mb", rounded(1e-6 * k.bytes)},
          {"gb_s", k.bytes > 0 ? Row(rounded(1e-9 * k.bytes / k.seconds, 1)) : Row()},
          {"copy_gb_s", k.bytes > 0 ? Row(rounded(1e-9 * k.bytes / k.copy_seconds, 1)) : Row()},
          {"gflop", has_products ? Row(rounded(1e-9 * k.flops)) : Row()},
          {"gf_s", has_products ? Row(rounded(1e-9 * k.flops / k.seconds, 1)) : Row()},
          {"best_gf_s", has_products ? Row(rounded(1e-9 * k.flops / k.product_seconds, 1)) : Row()},
          {"of_limit", rounded(100 * k.share_of_limit(), 1)}};
}

}  // namespace

std::string kernels_help() {
  KernelsOptions defaults;
  return help_text(kKernelsHelp, flags_of(defaults));
}

ExitCode bench_kernels(App& app, const Arguments& arguments) {
  KernelsOptions options;
  read_flags(app, take_keys(arguments, options.run), flags_of(options));
  Config config;
  app.comm.agree([&] {
    if (!options.svg.empty() && app.world.rank() == 0) require_writable("--svg", options.svg);
    options.run.overrides.insert(options.run.overrides.end(), {"--mesh.streams=inline", "--mesh.device=cpu", "--log.trace=1"});
    config = make_config(options.run);
  });
  BenchRun run(app, config);
  const StepTimes times = time_kernels(app, run, config, options.run.warmup);
  Report report(app.world.rank() == 0);
  for (const KernelTime& kernel : times.kernels) report.add(row_of(kernel, times.seconds));
  report.add(row_of({.task = "(no task)", .calls = 1, .seconds = times.other_seconds()}, times.seconds));
  report.print_table();
  app.comm.agree([&] {
    if (options.svg.empty() || app.world.rank() != 0) return;
    write_output(
        "--svg", options.svg,
        kernels_svg(fmt::format("{}, {}, batch {}, {} tokens, {} ranks: a step of {:.1f} ms", options.run.model, config.fsdp.param_dtype,
                                config.train.micro_batch, config.train.seq_len, app.world.num_ranks(), 1e3 * times.seconds),
                    times));
  });
  return ExitCode::done;
}

}  // namespace mica::train::bench
