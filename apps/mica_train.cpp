// SPDX-License-Identifier: Apache-2.0
// mica-train: one training run, started by mpirun or srun.

#include "mica/train/run_training.hpp"

#include "program.hpp"

int main(int argc, char** argv) {
  return mica::apps::run_program(argc, argv, {mica::train::training_help, mica::train::version_text},
                                 [&](const auto&) { return mica::run_app(argc, argv, mica::train::run_training); });
}
