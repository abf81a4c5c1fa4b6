// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "mica/mpi/session.hpp"

namespace mica::train {

/// Where this rank's time goes between mpirun and the end of the first optimizer step (log.level=debug). Times before main() are accurate
/// to a clock tick, about 10 ms.
class StartTimes {
 public:
  /// Begins with the phases that are already over: the launcher, if its process is known; loading the program; MPI_Init.
  explicit StartTimes(const mpi::Session& session);

  /// When this rank called MPI_Init.
  [[nodiscard]] std::chrono::steady_clock::time_point mpi_init_at() const { return mpi_init_at_; }
  /// Ends the phase that began at the last call. Times of a phase that occurs again are added.
  void end(std::string_view phase);
  /// All phases in order and their sum, one per line.
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
  Clock::time_point mpi_init_at_;
};

}  // namespace mica::train
