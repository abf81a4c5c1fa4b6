// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "mica/mpi/session.hpp"

namespace mica::train {

/// Where the time of a launch goes between mpirun and the end of the first optimizer step, on this rank (log.level=debug).
/// What lies before main() is known to a clock tick, about 10 ms.
class StartTimes {
 public:
  /// Begins with what is over by now: the launcher, if its process is known; loading the program; MPI_Init.
  explicit StartTimes(const mpi::Session& session);

  /// What came since the last call was this phase. The times of a phase that comes again are added.
  void end(std::string_view phase);
  /// All phases in their order, and their sum: a line each.
  [[nodiscard]] std::string table() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Phase {
    std::string name;
    double ms;
  };
  void add(std::string_view phase, double ms);

  std::string begin_ = "the start of the program";
  std::vector<Phase> phases_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace mica::train
