// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/hang_folder.hpp"

#include <filesystem>

#include <gtest/gtest.h>

#include "support/folder_opens.hpp"
#include "support/temporary_folder.hpp"

namespace mica {
namespace {

/// RUN/hang/LAUNCH
class HangFolderOfARun : public ::testing::Test {
 protected:
  HangFolderOfARun() : place_(HangFolder::of_launch(run_.path(), "launch")) { std::filesystem::create_directories(place_.path()); }

  test::TemporaryFolder run_;
  HangFolder place_;
};

// On NFS a rank that has looked for a file too early would not see it for half a minute otherwise.
TEST_F(HangFolderOfARun, IsOpenedForEveryLookAtWhatOtherNodesWrite) {
  const test::FolderOpens opens(place_.path());
  EXPECT_FALSE(place_.has_report());
  EXPECT_GE(opens.count(), 1);
  EXPECT_FALSE(place_.read_summary());
  EXPECT_GE(opens.count(), 1);
  EXPECT_EQ(place_.num_unsaved(1), 0);
  EXPECT_GE(opens.count(), 1);
  place_.write_report("all");
  EXPECT_TRUE(place_.has_report());
}

// Before an alarm no rank has been in it.
TEST_F(HangFolderOfARun, IsLookedForInFoldersThatMayBeNew) {
  const test::FolderOpens opens_of_run(run_.path()), opens_of_hang(run_ / "hang");
  EXPECT_TRUE(place_.exists());
  EXPECT_GE(opens_of_run.count(), 1);
  EXPECT_GE(opens_of_hang.count(), 1);
}

TEST_F(HangFolderOfARun, CountsRanksThatCouldNotSaveByAttempt) {
  place_.write_unsaved(3, 1);
  place_.write_unsaved(0, 1);
  place_.write_unsaved(3, 2);
  EXPECT_EQ(place_.num_unsaved(1), 2);
  EXPECT_EQ(place_.num_unsaved(2), 1);
}

}  // namespace
}  // namespace mica
