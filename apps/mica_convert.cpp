// SPDX-License-Identifier: Apache-2.0
// mica-convert: checkpoints to and from other formats.

#include <iostream>

#include <unistd.h>

#include "mica/checkpoint/convert.hpp"
#include "mica/checkpoint/inspect.hpp"

#include "program.hpp"

int main(int argc, char** argv) {
  using namespace mica;
  return apps::run_program(argc, argv, {"mica-convert", checkpoint::convert_help, checkpoint::build_text}, [](const auto& arguments) {
    std::ostream* progress = ::isatty(STDERR_FILENO) != 0 ? &std::cerr : nullptr;
    return checkpoint::run_convert(arguments, std::cout, progress);
  });
}
