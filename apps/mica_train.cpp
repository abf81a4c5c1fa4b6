// SPDX-License-Identifier: Apache-2.0
// mica-train: one training run, started by mpirun or srun.

#include <algorithm>
#include <csignal>
#include <optional>

#include "mica/train/run_training.hpp"
#include "mica/train/stop_signal.hpp"

#include "program.hpp"

int main(int argc, char** argv) {
  mica::apps::return_scratch_memory();
  return mica::apps::run_program(argc, argv, {"mica-train", mica::train::training_help, mica::train::build_text},
                                 [&](const auto& arguments) {
                                   // A reader that is gone (`| tee`, which Ctrl-C ends first) must not end the run before its save.
                                   std::signal(SIGPIPE, SIG_IGN);
                                   std::optional<mica::train::StopSignal> stop_signal;
                                   // --check has nothing to save: a signal ends it like any program.
                                   if (std::ranges::find(arguments, "--check") == arguments.end()) stop_signal.emplace();
                                   return mica::run_app(argc, argv, mica::train::run_training);
                                 });
}
