// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
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
  /// Folders of saves that are not complete.
  [[nodiscard]] std::vector<std::string> half_saves() const {
    std::vector<std::string> found;
    std::error_code none;
    for (std::filesystem::directory_iterator it(run_folder() + "/checkpoints", none); !none && it != std::filesystem::directory_iterator();
         it.increment(none)) {
      if (it->path().extension() == ".tmp") found.push_back(it->path().filename().string());
    }
    return found;
  }
  /// It ended with status 75, saved after its last step, and goes on after that.
  /// @param flags  of the run, beside run.cfg
  void expect_saved_and_goes_on(const Finished& stopped, int num_ranks, std::vector<std::string> flags = {}) const {
    EXPECT_EQ(stopped.status, 75) << stopped.output;
    EXPECT_THAT(stopped.error_lines(), ::testing::IsEmpty());
    EXPECT_THAT(stopped.output, ::testing::HasSubstr("start the same command again"));
    ASSERT_GT(newest(), 0) << stopped.output;
    EXPECT_EQ(step_lines(run_folder()).back().step, newest());
    EXPECT_THAT(half_saves(), ::testing::IsEmpty());
    EXPECT_EQ(test::run({program("mica-inspect"), "verify", run_folder()}).status, 0);
    const std::int64_t saved = newest();
    flags.insert(flags.end(), {"--train.log_interval=1", "--train.steps=" + std::to_string(saved + 2)});
    const Finished next = test::run(command(num_ranks, flags));
    EXPECT_EQ(next.status, 0) << next.output;
    EXPECT_EQ(first_progress_step(next.output), saved + 1);
  }
  static void to_all(const std::vector<pid_t>& ranks, int signal) {
    for (const pid_t rank : ranks) ::kill(rank, signal);
  }

  TemporaryFolder folder_;
};

}  // namespace mica::test
