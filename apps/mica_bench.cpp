// SPDX-License-Identifier: Apache-2.0
// mica-bench: how fast Mica is on this machine, compared with the limits of the machine.

#include "mica/train/bench.hpp"
#include "mica/train/run_training.hpp"

#include "program.hpp"

int main(int argc, char** argv) {
  mica::apps::return_scratch_memory();
  return mica::apps::run_program(argc, argv, {"mica-bench", mica::train::bench_help, mica::train::build_text},
                                 [&](const auto&) { return mica::run_app(argc, argv, mica::train::run_bench); });
}
