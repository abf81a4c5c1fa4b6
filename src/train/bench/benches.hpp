// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: its subcommands. Each takes the arguments after its name. @collective

#include <string>
#include <vector>

#include "mica/comm/run_app.hpp"

namespace mica::train::bench {

using Arguments = std::vector<std::string>;

ExitCode bench_train(App& app, const Arguments& arguments);
std::string train_help();
ExitCode bench_kernels(App& app, const Arguments& arguments);
std::string kernels_help();
ExitCode bench_gemm(App& app, const Arguments& arguments);
std::string gemm_help();
ExitCode bench_comm(App& app, const Arguments& arguments);
std::string comm_help();
ExitCode bench_checkpoint(App& app, const Arguments& arguments);
std::string checkpoint_help();
ExitCode bench_overhead(App& app, const Arguments& arguments);
std::string overhead_help();

}  // namespace mica::train::bench
