// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {

/// A folder with a config, run.cfg, whose training ends when it is told to.
class EndlessRun : public ::testing::Test {
 protected:
  EndlessRun() {
    write_tokens(folder_ / "tokens.bin", 4000);
    write_text(folder_ / "run.cfg",
               "[model]\ntype = mlp\nlayers = 2\nwidth = 16\nvocab_size = 16\n"
               "[data]\ntrain = " +
                   (folder_ / "tokens.bin") +
                   "\n"
                   "[train]\nsteps = 100000000\nmicro_batch = 2\nglobal_batch = 8\nseq_len = 16\nlog_interval = 20\n"
                   "[optim]\nschedule = constant\n"
                   "[run]\ndir = " +
                   run_folder() + "\n");
  }
  [[nodiscard]] std::string run_folder() const { return folder_ / "run"; }
  [[nodiscard]] std::vector<std::string> command(int num_ranks, const std::vector<std::string>& flags = {}) const {
    return training(num_ranks, folder_ / "run.cfg", flags);
  }
  /// The step of the newest checkpoint; 0: there is none.
  [[nodiscard]] std::int64_t newest() const {
    const std::vector<std::string> all = checkpoints_of(run_folder());
    return all.empty() ? 0 : std::stoll(all.back().substr(5));
  }
  static void to_all(const std::vector<pid_t>& ranks, int signal) {
    for (const pid_t rank : ranks) ::kill(rank, signal);
  }

  TemporaryFolder folder_;
};

}  // namespace mica::test
