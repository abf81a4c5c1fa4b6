// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string_view>

#include "mica/train/bench.hpp"

#include "benches.hpp"

namespace mica::train {
namespace {

constexpr const char* kBenchHelp = R"(mica-bench train|kernels|gemm|comm|checkpoint|overhead [--flags]

Measures Mica on this machine. Every figure comes with the machine's own limit, measured in the same run, since the speed of shared
machines varies.

  train        steps of a sharded GPT-2: tokens/s, the share of time that the fastest library needs for its products, memory per rank
  kernels      where a step's time goes: each kind of task beside a copy and a product of its size; a roofline
  gemm         the matrix products of GPT-2: GFLOP/s, compared with plain oneDNN and OpenBLAS
  comm         all-gather, reduce-scatter, all-reduce: GB/s, compared with memcpy; --idle-cost: what a waiting collective costs
  checkpoint   save and load, compared with a plain write and read of the same bytes
  overhead     sharded compared with unsharded computation; the runtime's own time per unit

  mica-bench train --help        the flags of one benchmark
  -h, --help, --version

JSON lines go to standard output, a table to standard error. Comparisons are fairest with one core per rank:
  export OMP_NUM_THREADS=1; mpirun -np 2 mica-bench train --model char-tiny --batch 12 --seq 64
scripts/peers/ has the same measurements for PyTorch, to alternate with these.
)";

struct Command {
  std::string_view name;
  ExitCode (*run)(App&, const bench::Arguments&);
  std::string (*help)();
};

constexpr std::array<Command, 6> kCommands{{{"train", bench::bench_train, bench::train_help},
                                            {"kernels", bench::bench_kernels, bench::kernels_help},
                                            {"gemm", bench::bench_gemm, bench::gemm_help},
                                            {"comm", bench::bench_comm, bench::comm_help},
                                            {"checkpoint", bench::bench_checkpoint, bench::checkpoint_help},
                                            {"overhead", bench::bench_overhead, bench::overhead_help}}};

}  // namespace

std::string bench_help(const std::vector<std::string>& arguments) {
  const auto command = std::ranges::find(kCommands, arguments.front(), &Command::name);
  return command == kCommands.end() ? kBenchHelp : command->help();
}

ExitCode run_bench(App& app) {
  const std::string name = app.arguments.empty() ? "" : app.arguments.front();
  const auto command = std::ranges::find(kCommands, name, &Command::name);
  app.comm.agree([&] {
    require<ConfigError>(!name.empty(),
                         "no benchmark named: mica-bench train|kernels|gemm|comm|checkpoint|overhead; see mica-bench --help");
    require<ConfigError>(command != kCommands.end(),
                         "unknown benchmark '{}', expected train, kernels, gemm, comm, checkpoint or overhead; see mica-bench --help",
                         name);
  });
  return command->run(app, {app.arguments.begin() + 1, app.arguments.end()});
}

}  // namespace mica::train
