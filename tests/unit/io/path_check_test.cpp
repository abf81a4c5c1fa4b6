// SPDX-License-Identifier: Apache-2.0
#include "mica/io/path_check.hpp"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "mica/core/error.hpp"

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

TEST(PathCheck, OnePlaceOfTwoNames) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "a");
  std::filesystem::create_symlink(folder / "a", folder / "link");
  std::filesystem::create_symlink(folder / "loop", folder / "loop");
  EXPECT_TRUE(lead_to_one_place(folder / "a", folder / "link"));
  EXPECT_FALSE(lead_to_one_place(folder / "a", folder.path()));
  EXPECT_FALSE(lead_to_one_place(folder / "a", folder / "none"));
  EXPECT_FALSE(lead_to_one_place(folder / "none", folder / "a"));
  EXPECT_FALSE(lead_to_one_place(folder / "none", folder / "none"));
  EXPECT_THROW((void)lead_to_one_place(folder / "a", folder / "loop"), IoError) << "what cannot be looked up may be the same";
}

}  // namespace
}  // namespace mica::io
