// SPDX-License-Identifier: Apache-2.0
#include "mica/core/open_folder.hpp"

#include <cerrno>
#include <fstream>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace mica
