// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/comm/run_app.hpp"

namespace mica::train {

/// mica-bench: `train|kernels|gemm|comm|overhead|checkpoint [--flags]`. JSON lines on standard output, a table on standard error, both
/// from rank 0. @collective
ExitCode run_bench(App& app);

/// Help for a benchmark, if the first argument names one, else for the program.
[[nodiscard]] std::string bench_help(const std::vector<std::string>& arguments);

}  // namespace mica::train
