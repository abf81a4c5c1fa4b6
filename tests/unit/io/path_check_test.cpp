// SPDX-License-Identifier: Apache-2.0
#include "mica/io/path_check.hpp"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"

namespace mica::io {
namespace {

TEST(PathCheck, SaysWhatIsThereInstead) {
  const test::TemporaryFolder folder;
  const std::string file = folder / "file", link = folder / "link", loop = folder / "loop";
  std::ofstream(file) << "x";
  std::filesystem::create_symlink(file, link);
  std::filesystem::create_symlink(loop, loop);
  EXPECT_EQ(why_no_file(file), "");
  EXPECT_EQ(why_no_file(link), "");
  EXPECT_EQ(why_no_file(folder / "none"), "no such file");
  EXPECT_EQ(why_no_file(file + "/none"), "no such file");
  EXPECT_EQ(why_no_file(folder.path()), "is a folder");
  EXPECT_EQ(why_no_file("/dev/null"), "is a device or pipe");
  EXPECT_EQ(why_no_file(loop), "Too many levels of symbolic links") << "also a missing permission is told in the system's words";
  EXPECT_EQ(why_no_folder(folder.path()), "");
  EXPECT_EQ(why_no_folder(folder / "none"), "no such folder");
  EXPECT_EQ(why_no_folder(link), "is a file");
}

}  // namespace
}  // namespace mica::io
