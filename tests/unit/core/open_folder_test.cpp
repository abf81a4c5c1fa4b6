// SPDX-License-Identifier: Apache-2.0
#include "mica/core/open_folder.hpp"

#include <cerrno>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/folder_opens.hpp"
#include "support/temporary_folder.hpp"

namespace mica {
namespace {

TEST(OpenFolder, SaysWhyAFolderCannotBeOpened) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  EXPECT_EQ(open_folder(folder.path()), 0);
  EXPECT_EQ(open_folder(folder / "none"), ENOENT);
  EXPECT_EQ(open_folder(folder / "file"), ENOTDIR);
}

TEST(OpenFolder, NamesWithAPrefixAreThoseOfWholeFiles) {
  const test::TemporaryFolder folder;
  for (const char* name : {"part-1", "part-2", "part-3.tmp", "claim-1"}) std::ofstream(folder / name) << "x";
  EXPECT_THAT(names_with(folder.path(), "part-"), ::testing::Optional(::testing::UnorderedElementsAre("part-1", "part-2")));
  EXPECT_THAT(names_with(folder.path(), "other-"), ::testing::Optional(::testing::IsEmpty()));
  EXPECT_FALSE(names_with(folder / "none", "part-"));
}

// A client of NFS asks the server then.
TEST(OpenFolder, ALookForANameOpensItsFolder) {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "here") << "x";
  const test::FolderOpens opens(folder.path());
  EXPECT_TRUE(is_there(folder / "here"));
  EXPECT_EQ(opens.count(), 1);
  EXPECT_FALSE(is_there(folder / "not"));
  EXPECT_EQ(opens.count(), 1);
}

}  // namespace
}  // namespace mica
