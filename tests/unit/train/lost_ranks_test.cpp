// SPDX-License-Identifier: Apache-2.0
// When SIGTERM means that ranks are lost. That they save and end then: tests/fault/lost_ranks_test.cpp.
#include "mica/train/lost_ranks.hpp"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "mica/train/stop_signal.hpp"

#include "support/shared_folder.hpp"
#include "support/temporary_folder.hpp"
#include "testing/local_group.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::train {
namespace {

using ::testing::HasSubstr;
using Seconds = std::chrono::duration<double>;

// A rank may compute for long: replicas that accumulate gradients do.
TEST(LostRanks, SigtermIsALossOnlyToARankThatWaits) {
  const test::TemporaryFolder folder;
  const StopSignal stop;
  run_local_ranks(1, [&](auto world) {
    test::SavedModel model(std::move(world), test::small_units());
    model.fill(4);
    checkpoint::SaveState state = model.state(4);
    state.run_id = "r0";
    // Refused, so that this process does not end.
    checkpoint::EmergencySaver saver(folder.path(), state, [] { throw ConfigError("another job's"); });
    std::atomic<Seconds> waited(Seconds(0));
    std::atomic<int> num_warnings = 0;
    std::string warned;
    const LostRanks lost_ranks(saver, {.waits = [&] { return waited.load(); },
                                       .tell_saved = [](const checkpoint::SaveReport&) {},
                                       .warn =
                                           [&](const std::string& text) {
                                             if (num_warnings == 0) warned = text;
                                             ++num_warnings;
                                           },
                                       .exits = [] {},
                                       .how_to_go_on = ""});
    ::kill(::getpid(), SIGTERM);
    std::this_thread::sleep_for(LostRanks::kStall + std::chrono::seconds(1));
    EXPECT_EQ(num_warnings, 0);
    waited = LostRanks::kStall;
    while (num_warnings == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_THAT(warned, HasSubstr("SIGTERM, and no collective completes: the remaining ranks cannot save: another job's"));
  });
}

// The rank that completed it may not be able to write the run's metrics: status 75 all the same, so that the job goes on.
TEST(LostRanks, ACheckpointThatCannotBeNotedIsSavedAllTheSame) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const test::SharedFolder folder;
  EXPECT_EXIT(run_local_ranks(1,
                              [&](auto world) {
                                test::SavedModel model(std::move(world), test::small_units());
                                model.fill(4);
                                checkpoint::SaveState state = model.state(4);
                                state.run_id = "r0";
                                checkpoint::EmergencySaver saver(folder.path(), state, [] {});
                                std::string warned;
                                LostRanks lost_ranks(saver, {.waits = [] { return Seconds(0); },
                                                             .tell_saved = [](const auto&) { throw ConfigError("no metrics"); },
                                                             .warn = [&](const std::string& text) { warned += text + "; "; },
                                                             .exits = [&] { std::fputs(warned.c_str(), stderr); },
                                                             .how_to_go_on = "go on"});
                                lost_ranks.save_and_exit("rank 1 is lost");
                              }),
              ::testing::ExitedWithCode(75), "no metrics; rank 1 is lost: the remaining ranks saved step 4");
}

}  // namespace
}  // namespace mica::train
