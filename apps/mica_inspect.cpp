// SPDX-License-Identifier: Apache-2.0
// mica-inspect: what a checkpoint holds, whether it is sound, how it differs from another; how a run is doing.

#include <algorithm>
#include <iostream>

#include <sys/ioctl.h>
#include <unistd.h>

#include "mica/checkpoint/inspect.hpp"
#include "mica/report/follow.hpp"

#include "program.hpp"

namespace {

/// Of the terminal; 0 if there is none.
std::size_t columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace mica;
  return apps::run_program(argc, argv, {"mica-inspect", checkpoint::inspect_help, checkpoint::build_text}, [](const auto& arguments) {
    if (std::ranges::find(arguments, "--follow") != arguments.end()) {
      return report::follow_run(report::followed_folder(arguments), std::cout,
                                {.on_terminal = ::isatty(STDOUT_FILENO) != 0, .columns = columns});
    }
    std::ostream* progress = ::isatty(STDERR_FILENO) != 0 ? &std::cerr : nullptr;
    return checkpoint::run_inspect(arguments, std::cout, progress);
  });
}
