// SPDX-License-Identifier: Apache-2.0
// A save that fails: it is every rank's error, and leaves nothing.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/folder.hpp"

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::error_of;
using test::SavedModel;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// A failure on any one rank is everybody's error, and the earlier checkpoint stays the newest.
TEST(FailingSave, AFailureOnOneRankIsThrownOnAllAndLeavesNothing) {
  const TemporaryFolder folder;
  for (const std::string_view point : kSavePoints) {
    if (point == "after rename" || point == "earlier one moved") continue;  // complete by then; not reached
    for (const int failing : {0, 2}) {
      if (failing != 0 && point != "metadata written" && point != "shard written") continue;
      run_local_ranks(3, [&](auto world) {
        SavedModel model(std::move(world), test::small_units());
        model.fill(1);
        model.save(folder.path(), 1);
        const SaveOptions options{.at_point = [&](std::string_view at) {
          if (at == point && model.comm().rank() == failing) throw IoError("/x: no space left");
        }};
        EXPECT_EQ(error_of<IoError>([&] { model.save(folder.path(), 2, options); }), fmt::format("rank {}: /x: no space left", failing))
            << point;
        (void)model.comm().gather_strings("");
        EXPECT_EQ(newest_complete(folder.path())->step, 1);
        EXPECT_FALSE(fs::exists(folder / "checkpoints/step-00000002.r0.tmp"));
        EXPECT_EQ(model.load(folder / "checkpoints/step-00000001").notes.size(), 0U);
        (void)model.comm().gather_strings("");
      });
    }
  }
}

// Rank 0 writes it beside the shard files, which all succeed.
TEST(FailingSave, AModelIndexThatCannotBeWrittenIsEveryRanksError) {
  const TemporaryFolder folder;
  const std::string half = folder / "checkpoints/step-00000002.r0.tmp";
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.save(folder.path(), 1);
    const SaveOptions options{.at_point = [&](std::string_view at) {
      if (at == "folder made") fs::create_directory(half + "/model.h5");
    }};
    EXPECT_THAT(error_of<IoError>([&] { model.save(folder.path(), 2, options); }), AllOf(HasSubstr("rank 0: "), HasSubstr("model.h5")));
    (void)model.comm().gather_strings("");
    EXPECT_FALSE(fs::exists(half));
    EXPECT_EQ(newest_complete(folder.path())->step, 1);
    (void)model.comm().gather_strings("");
  });
}

// The checkpoint that was to be replaced is back under its name.
TEST(FailingSave, AFailureWhileOneIsReplacedLosesNothing) {
  const TemporaryFolder folder;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    model.fill(1);
    model.save(folder.path(), 2);
    const auto saved = model.bits();
    model.fill(2);
    const SaveOptions options{.at_point = [](std::string_view at) {
      if (at == "earlier one moved") throw IoError("/x: input/output error");
    }};
    EXPECT_THROW(model.save(folder.path(), 2, options), IoError);
    (void)model.load(folder / "checkpoints/step-00000002");
    EXPECT_EQ(model.bits(), saved);
  });
}

// Another job deletes a file of a save that is under way: it must not become a complete checkpoint, and cost no earlier one.
TEST(FailingSave, WhatIsNoLongerThereIsNotPublished) {
  const TemporaryFolder folder;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    model.save(folder.path(), 1);
    const std::string half = folder / "checkpoints/step-00000002.r0.tmp";
    for (const bool truncates : {false, true}) {
      const SaveOptions options{.keep = 1, .at_point = [&](std::string_view at) {
                                  if (at != "before rename") return;
                                  const std::string shard = half + "/shard-r0-00000002-00000.h5";
                                  truncates ? fs::resize_file(shard, 100) : static_cast<void>(fs::remove(shard));
                                }};
      EXPECT_THAT(error_of<IoError>([&] { model.save(folder.path(), 2, options); }),
                  AllOf(HasSubstr("shard-r0-00000002-00000.h5"), HasSubstr("does another job use this run folder?")));
      EXPECT_EQ(newest_complete(folder.path())->step, 1);
    }
  });
}

}  // namespace
}  // namespace mica::checkpoint
