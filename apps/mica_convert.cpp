// mica-convert: checkpoints to and from other formats.

#include <iostream>

#include <unistd.h>

#include "mica/checkpoint/convert.hpp"

#include "program.hpp"

int main(int argc, char** argv) {
  return mica::apps::run_program([&] {
    std::ostream* progress = ::isatty(STDERR_FILENO) != 0 ? &std::cerr : nullptr;
    const mica::ExitCode code =
        mica::checkpoint::run_convert(std::vector<std::string>(argv + 1, argv + argc), std::cout, progress);
    std::cout.flush();
    mica::require<mica::IoError>(static_cast<bool>(std::cout), "cannot write to standard output");
    return code;
  });
}
