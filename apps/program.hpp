#pragma once

// What the programs without ranks have in common: how they end. (mica-train ends by run_app, which knows MPI.)

#include <cstdio>
#include <exception>

#include "mica/core/error.hpp"

namespace mica::apps {

/// Runs `body` (returns ExitCode) and turns an exception into the one line `mica: error: ...` and an exit status.
template <class Body>
int run_program(const Body& body) {
  try {
    const auto code = static_cast<int>(body());
    require<IoError>(std::fflush(stdout) == 0, "cannot write to standard output (disk full, or its reader is gone)");
    return code;
  } catch (const Error& error) {
    std::fprintf(stderr, "mica: error: %s\n", error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mica: error: %s\n", error.what());
    return static_cast<int>(ExitCode::runtime_failure);
  }
}

}  // namespace mica::apps
