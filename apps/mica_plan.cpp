// SPDX-License-Identifier: Apache-2.0
// mica-plan: what a run would need on a cluster that need not exist.

#include <iostream>

#include "mica/train/plan_command.hpp"
#include "mica/train/run_training.hpp"

#include "program.hpp"

int main(int argc, char** argv) {
  using namespace mica;
  return apps::run_program(argc, argv, {"mica-plan", train::plan_help, train::build_text},
                           [](const auto& arguments) { return train::run_plan(arguments, std::cout); });
}
