// SPDX-License-Identifier: Apache-2.0
// mica-generate: text from a trained model, and likelihoods of text.

#include "mica/generate/run_generate.hpp"
#include "mica/train/run_training.hpp"

#include "program.hpp"

int main(int argc, char** argv) {
  mica::apps::return_scratch_memory();
  return mica::apps::run_program(argc, argv, {"mica-generate", mica::generate::generate_help, mica::train::build_text},
                                 [&](const auto&) { return mica::run_app(argc, argv, mica::generate::run_generate); });
}
