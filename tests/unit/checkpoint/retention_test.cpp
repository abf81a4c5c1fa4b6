// SPDX-License-Identifier: Apache-2.0
// Which checkpoints stay, and why: the rules by themselves, and as saves follow them.
#include "mica/checkpoint/retention.hpp"

#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/inspect.hpp"
#include "mica/checkpoint/manifest.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/crc32c.hpp"

#include "support/temporary_folder.hpp"
#include "support/unreadable_file.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::SavedModel;
using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
namespace fs = std::filesystem;
constexpr auto kNoLoss = std::nullopt;

/// Steps that have a reason.
std::vector<std::int64_t> kept(const std::vector<Keepable>& checkpoints, const Retention& rules) {
  const std::vector<std::vector<std::string>> reasons = reasons_to_keep(checkpoints, rules);
  std::vector<std::int64_t> steps;
  for (std::size_t i = 0; i < checkpoints.size(); ++i) {
    if (!reasons[i].empty()) steps.push_back(checkpoints[i].step);
  }
  return steps;
}

const std::vector<Keepable> kFive{{"", 2, 1.5}, {"", 4, 1.25}, {"", 6, kNoLoss}, {"", 8, 1.25}, {"", 9, 3.0}};

TEST(Retention, EachRuleKeepsItsOwn) {
  EXPECT_THAT(kept(kFive, {0}), ElementsAre(2, 4, 6, 8, 9)) << "0: all";
  EXPECT_THAT(kept(kFive, {1}), ElementsAre(9));
  EXPECT_THAT(kept(kFive, {3}), ElementsAre(6, 8, 9));
  EXPECT_THAT(kept(kFive, {30}), ElementsAre(2, 4, 6, 8, 9));
  EXPECT_THAT(kept(kFive, {1, 4}), ElementsAre(4, 8, 9));
  EXPECT_THAT(kept(kFive, {1, 0, 1}), ElementsAre(8, 9)) << "of equal losses the newest";
  EXPECT_THAT(kept(kFive, {1, 0, 2}), ElementsAre(4, 8, 9));
  EXPECT_THAT(kept(kFive, {1, 0, 4}), ElementsAre(2, 4, 8, 9)) << "one without a loss is never the best";
  EXPECT_THAT(kept(kFive, {2, 6, 1}), ElementsAre(6, 8, 9));
  EXPECT_THAT(kept({}, {2, 6, 1}), IsEmpty());
}

// A resume may evaluate other sequences. What was measured before it must neither stay for ever nor cost a new best one.
TEST(Retention, LossesOfOtherDataThanTheNewestAreNotCompared) {
  const auto of = [](std::int64_t step, std::optional<double> loss, std::string data) {
    return Keepable{.path = "", .step = step, .val_loss = loss, .val_data = std::move(data)};
  };
  const std::vector<Keepable> two_data{of(2, 0.5, "a"), of(4, 0.75, "a"), of(6, 2.0, "b"), of(8, 1.5, "b"), of(10, 3.0, "b")};
  EXPECT_THAT(kept(two_data, {1, 0, 1}), ElementsAre(8, 10));
  EXPECT_THAT(kept(two_data, {1, 0, 5}), ElementsAre(6, 8, 10));
  EXPECT_THAT(kept({of(2, 0.5, ""), of(4, 0.75, ""), of(6, 2.0, "b")}, {1, 0, 2}), ElementsAre(6)) << "of an older Mica";
  EXPECT_THAT(kept({of(2, 0.5, ""), of(4, 0.75, ""), of(6, 2.0, "")}, {1, 0, 2}), ElementsAre(2, 4, 6));
  EXPECT_THAT(kept({of(2, 0.5, "a"), of(4, 0.75, "a"), of(6, kNoLoss, "")}, {1, 0, 1}), ElementsAre(2, 6))
      << "the newest was not evaluated, which says nothing about the others";
  EXPECT_THAT(kept({of(2, 0.5, "a"), of(4, 2.0, "b"), of(6, 0.75, "a")}, {1, 0, 1}), ElementsAre(2, 6)) << "back to the first";
}

// A run that has diverged goes on saving: it must not delete the last model that is worth something.
TEST(Retention, TheNewestWithAFiniteLossIsKept) {
  const auto diverging = [](std::vector<std::int64_t> steps) {
    std::vector<Keepable> checkpoints;
    for (const std::int64_t step : {2, 4, 6, 8}) checkpoints.push_back({"", step, kNoLoss, std::ranges::count(steps, step) > 0});
    return checkpoints;
  };
  EXPECT_THAT(kept(diverging({6, 8}), {2}), ElementsAre(4, 6, 8));
  EXPECT_THAT(kept(diverging({6}), {1}), ElementsAre(8)) << "it has recovered";
  EXPECT_THAT(kept(diverging({2, 4, 6, 8}), {1}), ElementsAre(8)) << "there is none";
  EXPECT_THAT(reasons_to_keep(diverging({8}), {1})[2], ElementsAre("the newest that has not diverged"));
}

// Models alone (checkpoint.optimizer=false) do not delete what a preempted run has saved to resume from.
TEST(Retention, TheNewestThatCanBeResumedIsKept) {
  std::vector<Keepable> checkpoints;
  for (const std::int64_t step : {2, 4, 6, 8})
    checkpoints.push_back({.path = "", .step = step, .val_loss = kNoLoss, .can_be_resumed = step == 4});
  EXPECT_THAT(kept(checkpoints, {1}), ElementsAre(4, 8));
  EXPECT_THAT(reasons_to_keep(checkpoints, {1})[1], ElementsAre("the newest that a run can resume"));
  checkpoints[1].can_be_resumed = false;
  EXPECT_THAT(kept(checkpoints, {1}), ElementsAre(8));
}

TEST(Retention, ReasonsSayWhichRuleAndOfWhat) {
  const std::vector<std::vector<std::string>> reasons = reasons_to_keep(kFive, {2, 4, 1});
  EXPECT_THAT(reasons[0], IsEmpty());
  EXPECT_THAT(reasons[1], ElementsAre("a multiple of 4 steps"));
  EXPECT_THAT(reasons[3], ElementsAre("one of the 2 newest", "a multiple of 4 steps", "the lowest validation loss, 1.2500"));
  EXPECT_THAT(reasons_to_keep(kFive, {1})[4], ElementsAre("the newest"));
  EXPECT_THAT(reasons_to_keep(kFive, {0})[0], ElementsAre("all are kept"));
  EXPECT_THAT(reasons_to_keep(kFive, {1, 0, 2})[1], ElementsAre("one of the 2 lowest validation losses, 1.2500"));
}

/// Saves these steps with these losses on two ranks.
void save_steps(const std::string& run, const std::vector<std::pair<std::int64_t, std::optional<double>>>& steps, const Retention& rules) {
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.fill(1);
    for (const auto& [step, val_loss] : steps) {
      SaveState state = model.state(step);
      state.val_loss = val_loss;
      EXPECT_THAT(save(run, state, model.comm(), {.keep = rules}).notes, IsEmpty());
    }
  });
}

std::vector<std::int64_t> steps_in(const std::string& folder) {
  std::vector<std::int64_t> steps;
  for (const CheckpointPath& found : list_checkpoints(folder)) steps.push_back(found.step);
  return steps;
}

TEST(Retention, SavesCompareLossesOfTheSameData) {
  const TemporaryFolder folder;
  const auto save_step = [&](std::int64_t step, double val_loss, const std::string& val_data) {
    test::with_one_rank(test::small_units(), [&](SavedModel& model) {
      SaveState state = model.state(step);
      state.val_loss = val_loss;
      state.val_data = val_data;
      EXPECT_THAT(save(folder.path(), state, model.comm(), {.keep = {1, 0, 1}}).notes, IsEmpty());
    });
  };
  const std::string all = "2000 tokens in 1 file, crc32c 0badcafe; 62 sequences of 32 tokens";
  save_step(1, 0.5, "16 sequences");
  save_step(2, 0.75, "16 sequences");
  EXPECT_THAT(steps_in(folder / "checkpoints"), ElementsAre(1, 2));
  save_step(3, 1.25, all);
  EXPECT_THAT(steps_in(folder / "checkpoints"), ElementsAre(3));
  save_step(4, 1.5, all);
  EXPECT_THAT(steps_in(folder / "checkpoints"), ElementsAre(3, 4));
  EXPECT_EQ(read_manifest(folder / "checkpoints/step-00000003").val_data, all);
  save_step(5, std::nan(""), all);
  EXPECT_EQ(read_manifest(folder / "checkpoints/step-00000005").val_data, "") << "there is no loss that it could be of";
  std::ostringstream text, json;
  (void)run_inspect({folder / "checkpoints/step-00000003"}, text, nullptr);
  EXPECT_THAT(text.str(), AllOf(HasSubstr("evaluated   validation loss 1.2500 of " + all + "\n"),
                                HasSubstr("step 3: the lowest validation loss, 1.2500\n")));
  (void)run_inspect({"--json", folder / "checkpoints/step-00000003"}, json, nullptr);
  EXPECT_EQ(nlohmann::json::parse(json.str())["val_data"].get<std::string>(), all);
}

TEST(Retention, SavesOfADivergedRunLeaveAFiniteOne) {
  const TemporaryFolder folder;
  const auto save_step = [&](std::int64_t step, bool diverged) {
    test::with_one_rank(test::small_units(), [&](SavedModel& model) {
      SaveState state = model.state(step);
      state.diverged = diverged;
      EXPECT_THAT(save(folder.path(), state, model.comm(), {.keep = 1}).notes, IsEmpty());
    });
  };
  save_step(1, false);
  save_step(2, false);
  for (const std::int64_t step : {3, 4, 5}) save_step(step, true);
  EXPECT_THAT(steps_in(folder / "checkpoints"), ElementsAre(2, 5));
  EXPECT_FALSE(read_manifest(folder / "checkpoints/step-00000002").diverged);
  EXPECT_TRUE(read_manifest(folder / "checkpoints/step-00000005").diverged);
  std::ostringstream text;
  (void)run_inspect({folder.path()}, text, nullptr);
  EXPECT_THAT(text.str(),
              AllOf(HasSubstr("diverged    a parameter, or the loss or gradient norm of this step or the next one, was NaN or infinite\n"),
                    HasSubstr("kept        step 2: the newest that has not diverged\n")));
  save_step(6, false);
  EXPECT_THAT(steps_in(folder / "checkpoints"), ElementsAre(6));
}

TEST(Retention, SavesOfModelsAloneLeaveOneToResumeFrom) {
  const TemporaryFolder folder;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    model.fill(1);
    for (const std::int64_t step : {1, 2, 3, 4}) {
      SaveState state = model.state(step);
      if (step != 2) state.optimizer = nullptr;
      EXPECT_THAT(save(folder.path(), state, model.comm(), {.keep = 1}).notes, IsEmpty());
    }
  });
  EXPECT_THAT(steps_in(folder / "checkpoints"), ElementsAre(2, 4));
}

// The best one, or the only sound one, may be behind a read that fails.
TEST(Retention, WhatCannotBeReadIsKept) {
  const TemporaryFolder folder;
  save_steps(folder.path(), {{1, 0.5}, {2, 2.0}}, {0});
  test::make_unreadable(folder / "checkpoints/step-00000001/manifest.json");
  io::write_file_atomically(folder / "checkpoints/step-00000002/manifest.json", "{}");
  save_steps(folder.path(), {{3, 4.0}, {4, 3.0}}, {1, 0, 1});
  EXPECT_THAT(steps_in(folder / "checkpoints"), ElementsAre(1, 4)) << "a damaged one is deleted";
}

TEST(Retention, SavesFollowTheRulesAndLeaveWhatWasSetAside) {
  const TemporaryFolder folder;
  const std::string checkpoints = folder / "checkpoints";
  save_steps(folder.path(), {{1, 2.0}, {2, 0.5}, {3, kNoLoss}}, {0});
  const std::string aside = make_set_aside_folder(folder.path());
  set_aside_after(folder.path(), 2, aside);
  save_steps(folder.path(), {{4, 0.75}, {5, 9.0}, {6, std::nan("")}, {7, -std::numeric_limits<double>::infinity()}}, {1, 4, 1});
  EXPECT_THAT(steps_in(checkpoints), ElementsAre(2, 4, 7)) << "no number is no loss";
  EXPECT_THAT(steps_in(aside), ElementsAre(3));
  EXPECT_FALSE(read_manifest(checkpoints + "/step-00000007").val_loss);
  EXPECT_EQ(read_manifest(checkpoints + "/step-00000004").val_loss, 0.75);
  EXPECT_EQ(read_manifest(checkpoints + "/step-00000004").retention, Retention(1, 4, 1));

  std::ostringstream text, json;
  EXPECT_EQ(run_inspect({folder.path()}, text, nullptr), ExitCode::done);
  EXPECT_THAT(text.str(), HasSubstr("kept        step 2: the lowest validation loss, 0.5000\n"
                                    "            step 4: a multiple of 4 steps\n"
                                    "            step 7: the newest\n"));
  EXPECT_EQ(run_inspect({"--json", checkpoints + "/step-00000004"}, json, nullptr), ExitCode::done);
  const auto parsed = nlohmann::json::parse(json.str());
  EXPECT_EQ(parsed["val_loss"], 0.75);
  EXPECT_EQ(parsed["kept"].dump(), R"([{"reasons":["the lowest validation loss, 0.5000"],"step":2},)"
                                   R"({"reasons":["a multiple of 4 steps"],"step":4},{"reasons":["the newest"],"step":7}])");
}

// A launch with stricter rules has not saved yet.
TEST(Retention, WhatNoRuleKeepsIsSaid) {
  const TemporaryFolder folder;
  save_steps(folder.path(), {{1, kNoLoss}, {2, kNoLoss}, {5, kNoLoss}}, {0});
  save_steps(folder.path(), {{4, kNoLoss}}, {1});  // 5 is later, and stays the newest
  EXPECT_THAT(steps_in(folder / "checkpoints"), ElementsAre(4, 5));
  fs::rename(folder / "checkpoints/step-00000005", folder / "gone");
  save_steps(folder.path(), {{3, kNoLoss}}, {2});
  std::ostringstream text;
  (void)run_inspect({folder.path()}, text, nullptr);
  EXPECT_THAT(text.str(), HasSubstr("kept        step 3: no rule; the next save deletes it\n            step 4: the newest\n"));
}

// Files are most of a large manifest, and do not matter here: an entry that a reader of tensors refuses goes unnoticed.
TEST(Retention, LossesAreReadWithoutTheFiles) {
  const TemporaryFolder folder;
  save_steps(folder.path(), {{1, 0.25}}, {0});
  const std::string path = folder / "checkpoints/step-00000001/manifest.json";
  nlohmann::ordered_json manifest = nlohmann::ordered_json::parse(io::read_file(path));
  manifest.erase("manifest_crc32c");
  manifest["files"][0]["bytes"] = -1;
  std::string text = manifest.dump(1);
  text.resize(text.size() - 2);
  const std::uint32_t crc = io::crc32c(text.data(), std::ssize(text));
  io::write_file_atomically(path, fmt::format("{},\n \"manifest_crc32c\": \"{:08x}\"\n}}\n", text, crc));
  EXPECT_THAT(test::error_of<CheckpointError>([&] { (void)read_manifest(folder / "checkpoints/step-00000001"); }), HasSubstr("bytes"));
  const std::vector<Keepable> found = list_keepable(folder / "checkpoints", 1, true);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].val_loss, 0.25);
}

TEST(Retention, ADamagedCheckpointIsNeverTheBest) {
  const TemporaryFolder folder;
  save_steps(folder.path(), {{1, 0.25}, {2, 0.5}}, {0});
  fs::resize_file(folder / "checkpoints/step-00000001/manifest.json", 100);
  save_steps(folder.path(), {{3, 1.0}}, {1, 0, 1});
  EXPECT_THAT(steps_in(folder / "checkpoints"), ElementsAre(2, 3));
}

}  // namespace
}  // namespace mica::checkpoint
