// SPDX-License-Identifier: Apache-2.0
// A run whose checkpoints hold the model only, but for the one of a stop, or of an earlier training: it resumes past them, from the newest
// one with an optimizer.

#include <chrono>
#include <csignal>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/endless_run.hpp"

namespace mica::test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class PastModels : public EndlessRun {};

// Nothing that is saved after a stop can be resumed: a run that is killed goes back to the stop, by itself or by its path.
TEST_F(PastModels, AKillBehindModelsGoesBackToWhatAStopSaved) {
  const auto with = [](const std::vector<std::string>& more) {
    std::vector<std::string> flags{"--checkpoint.optimizer=false", "--checkpoint.interval=50"};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  };
  Child first(command(2, with({})));
  ASSERT_TRUE(first.wait_for("  loss ")) << first.wait(1).output;
  ASSERT_EQ(::kill(first.pid(), SIGUSR1), 0);
  const Finished stopped = first.wait();
  ASSERT_EQ(stopped.status, 75) << stopped.output;
  const std::int64_t saved = newest();
  const std::string path = run_folder() + "/checkpoints/" + checkpoints_of(run_folder()).back();
  const std::string by_path = "--checkpoint.resume=" + path;

  std::string output;
  const auto kill_behind_a_model = [&](const std::vector<std::string>& flags, const std::string& when_begun) {
    Child child(command(2, flags));
    const std::vector<pid_t> ranks = child.ranks(2);
    ASSERT_THAT(ranks, SizeIs(2));
    ASSERT_TRUE(child.wait_for(when_begun)) << child.wait(1).output;
    while (child.is_running() && newest() <= saved) std::this_thread::sleep_for(2ms);
    to_all(ranks, SIGKILL);
    output = child.wait(20).output;
    ASSERT_TRUE(have_ended(ranks, 20));
    ASSERT_GT(newest(), saved) << output;
    EXPECT_THAT(output, HasSubstr("resumes from " + path + ", step " + std::to_string(saved)));
  };
  const std::string passes_over = "newer checkpoints hold the model only, without the optimizer state, and cannot be resumed: step";
  kill_behind_a_model(with({by_path}), "resume   ");
  EXPECT_THAT(output, Not(HasSubstr(passes_over)));
  kill_behind_a_model(with({}), "are now in " + run_folder() + "/checkpoints/set-aside-1");
  EXPECT_THAT(output, HasSubstr(passes_over));

  const std::string last = std::to_string(newest() + 3);
  const Finished ended = test::run(command(2, with({by_path, "--train.steps=" + last, "--train.log_interval=1"})));
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr(passes_over)) << "`auto` has gone on with the line that began there";
  EXPECT_EQ(first_progress_step(ended.output), saved + 1) << ended.output;
  for (const char* aside : {"/checkpoints/set-aside-1", "/checkpoints/set-aside-2"}) {
    EXPECT_THAT(contents_of(run_folder() + aside), Not(IsEmpty())) << aside;
  }
  const Finished undisturbed = test::run(command(2, with({"--train.steps=" + last, "--run.dir=" + (folder_ / "undisturbed")})));
  ASSERT_EQ(undisturbed.status, 0) << undisturbed.output;
  EXPECT_EQ(step_lines(run_folder()), step_lines(folder_ / "undisturbed")) << "each step once, with the same figures";
  EXPECT_EQ(test::run({program("mica-inspect"), "diff", folder_ / "undisturbed", run_folder()}).status, 0);
  for (const std::vector<std::string>& flags : {with({"--train.steps=" + last}), with({by_path, "--train.steps=" + last})}) {
    const Finished again = test::run(command(2, flags));
    EXPECT_EQ(again.status, 0) << again.output;
    EXPECT_THAT(again.output, HasSubstr("nothing to do: step " + last + " of " + last + " is done; its checkpoint holds the model only"));
  }
}

// A run's folder as checkpoint.resume, from another run and from its own: its models are passed over, and counted once.
TEST_F(PastModels, ARunsFolderIsResumedFromItsNewestOptimizer) {
  const auto train = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--train.log_interval=1", "--checkpoint.keep=0"});
    return test::run(command(2, flags));
  };
  const std::vector<std::string> models{"--checkpoint.optimizer=false", "--checkpoint.interval=1"};
  const auto train_models = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), models.begin(), models.end());
    return train(flags);
  };
  ASSERT_EQ(train({"--train.steps=2"}).status, 0);
  ASSERT_EQ(train_models({"--train.steps=4"}).status, 0);
  const std::string resume = "--checkpoint.resume=" + run_folder(), passes_over = "and cannot be resumed: ";
  const Finished other = train({resume, "--train.steps=6", "--run.dir=" + (folder_ / "other")});
  EXPECT_EQ(other.status, 0) << other.output;
  EXPECT_THAT(other.output, HasSubstr(passes_over + "steps 3 to 4 (2 checkpoints)"));
  EXPECT_EQ(first_progress_step(other.output), 3) << other.output;

  const Finished begun = train_models({resume, "--train.steps=5"});
  EXPECT_EQ(begun.status, 0) << begun.output;
  EXPECT_EQ(first_progress_step(begun.output), 3) << begun.output;
  const Finished longer = train_models({resume, "--train.steps=7"});
  EXPECT_EQ(longer.status, 0) << longer.output;
  EXPECT_THAT(longer.output, HasSubstr(passes_over + "steps 3 to 5 (3 checkpoints)"));

  // What going back past a damaged one costs is for the user to decide.
  write_text(run_folder() + "/checkpoints/step-00000006/manifest.json", "{");
  const Finished damaged = train({resume, "--train.steps=9", "--run.dir=" + (folder_ / "third")});
  EXPECT_EQ(damaged.status, 2) << damaged.output;
  EXPECT_THAT(damaged.error_lines(), ElementsAre(AllOf(HasSubstr("step-00000006/manifest.json"),
                                                       HasSubstr("--checkpoint.resume=" + run_folder() + "/checkpoints/step-00000002"))))
      << "the newest that can be resumed";
}

}  // namespace
}  // namespace mica::test
