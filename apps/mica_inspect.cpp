// SPDX-License-Identifier: Apache-2.0
// mica-inspect: what is in a checkpoint, is it sound, does it equal another one.

#include <iostream>

#include <unistd.h>

#include "mica/checkpoint/inspect.hpp"

#include "program.hpp"

int main(int argc, char** argv) {
  using namespace mica;
  return apps::run_program(argc, argv, {"mica-inspect", checkpoint::inspect_help, checkpoint::build_text}, [](const auto& arguments) {
    std::ostream* progress = ::isatty(STDERR_FILENO) != 0 ? &std::cerr : nullptr;
    const ExitCode code = checkpoint::run_inspect(arguments, std::cout, progress);
    std::cout.flush();
    require<IoError>(static_cast<bool>(std::cout), "cannot write to standard output");
    return code;
  });
}
