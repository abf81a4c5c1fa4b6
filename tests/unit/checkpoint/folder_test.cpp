// SPDX-License-Identifier: Apache-2.0
// Which folders are checkpoints, which one is meant, what is left over, and where a checkpoint comes from.
#include "mica/checkpoint/folder.hpp"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/lineage.hpp"
#include "mica/core/error.hpp"

#include "support/temporary_folder.hpp"
#include "testing/local_group.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class Folders : public ::testing::Test {
 protected:
  void make(const std::string& name) const { fs::create_directories(checkpoints_folder(folder_.path()) + "/" + name); }
  [[nodiscard]] std::vector<std::string> found() const {
    std::vector<std::string> names;
    for (const CheckpointPath& each : list_checkpoints(checkpoints_folder(folder_.path()))) names.push_back(fs::path(each.path).filename());
    return names;
  }
  TemporaryFolder folder_;
};

TEST_F(Folders, CheckpointsAreFoundInTheOrderOfTheirSteps) {
  for (const char* name :
       {"step-00000010", "step-00000002", "step-5", "step-00000003.tmp", "step-00000004.1a2b3c4d.tmp", "set-aside-1", "steps"}) {
    make(name);
  }
  EXPECT_THAT(found(), ElementsAre("step-00000002", "step-00000010"));
  EXPECT_THAT(resolve_checkpoint(folder_.path()), HasSubstr("/step-00000010")) << "a run's folder means its newest one";
  EXPECT_THAT(resolve_checkpoint(checkpoints_folder(folder_.path())), HasSubstr("/step-00000010"));
  EXPECT_THAT(resolve_checkpoint(folder_ / "checkpoints/step-00000002"), HasSubstr("/step-00000002"));
  EXPECT_THROW((void)resolve_checkpoint(folder_ / "checkpoints/set-aside-1"), ConfigError);
  // A save that died just before the last rename, or a deletion that did after its own: complete, but not for long.
  const std::string leftover = checkpoints_folder(folder_.path()) + "/step-00000004.1a2b3c4d.tmp";
  std::ofstream(leftover + "/manifest.json") << "{}";
  fs::create_directory_symlink(leftover, folder_ / "link");
  for (const std::string& path : {leftover, leftover + "/", folder_ / "link"}) {
    EXPECT_THAT(test::error_of<ConfigError>([&] { (void)resolve_checkpoint(path); }),
                AllOf(HasSubstr(path), HasSubstr("not a complete checkpoint"), HasSubstr("rename the folder")));
  }
}

// A save that dies between two renames leaves the earlier checkpoint of its step under another name.
TEST_F(Folders, AReplacedCheckpointCountsUntilTheNewOneIsThere) {
  make("step-00000003.replaced");
  make("step-00000003.1a2b3c4d.tmp");
  EXPECT_THAT(found(), ElementsAre("step-00000003.replaced"));
  EXPECT_THAT(remove_leftovers(checkpoints_folder(folder_.path())), IsEmpty());
  EXPECT_THAT(found(), ElementsAre("step-00000003.replaced"));
  EXPECT_FALSE(fs::exists(folder_ / "checkpoints/step-00000003.1a2b3c4d.tmp"));
  make("step-00000003");
  EXPECT_THAT(found(), ElementsAre("step-00000003"));
  EXPECT_THAT(remove_leftovers(checkpoints_folder(folder_.path())), IsEmpty());
  EXPECT_FALSE(fs::exists(folder_ / "checkpoints/step-00000003.replaced"));
}

// A file system that does not answer must not look like a run without checkpoints, which would begin again and replace them.
TEST_F(Folders, AFolderThatCannotBeListedIsAnError) {
  EXPECT_THAT(found(), IsEmpty()) << "missing";
  const std::string folder = checkpoints_folder(folder_.path());
  for (const std::string& target : {folder_ / "scratch-that-is-not-mounted", folder}) {  // to nowhere, and to itself
    fs::create_directory_symlink(target, folder);
    EXPECT_THAT(test::error_of<ConfigError>([&] { (void)list_checkpoints(folder); }), HasSubstr(folder + ": cannot list the folder"));
    EXPECT_THROW((void)newest_complete(folder_.path()), ConfigError);
    fs::remove(folder);
  }
}

TEST_F(Folders, WhatIsSetAsideDoesNotComeBackAsTheOneItReplaced) {
  for (const char* name : {"step-00000002", "step-00000006", "step-00000006.replaced", "aside"}) make(name);
  set_aside_after(folder_.path(), 2, folder_ / "checkpoints/aside");
  EXPECT_THAT(found(), ElementsAre("step-00000002"));
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints/aside/step-00000006"));
}

TEST_F(Folders, AFileIsNoFolder) {
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THAT(test::error_of<ConfigError>([&] { (void)resolve_checkpoint(folder_ / "file"); }), HasSubstr("file: is a file; expected"));
}

TEST(Lineage, EndsAtTheFirstParentThatIsNotThere) {
  const TemporaryFolder folder;
  const auto save_as = [&](const std::string& run_id, std::int64_t step, const std::optional<CheckpointId>& parent) {
    run_local_ranks(1, [&](auto world) {
      test::SavedModel model(std::move(world), test::small_units());
      model.fill(1);
      SaveState state = model.state(step);
      state.run_id = run_id;
      state.parent = parent;
      (void)save(folder.path(), state, model.comm());
    });
  };
  const auto line = [&](std::int64_t step, std::size_t most = 20) {
    const std::string path = checkpoints_folder(folder.path()) + "/" + step_folder_name(step);
    const Line found = line_of(path, read_manifest(path), most);
    std::string text = found.goes_on ? "..." : "";
    for (const LineEntry& each : found.entries) text += fmt::format(" {}:{}{}", each.id.run_id, each.id.step, each.is_there ? "" : "?");
    return text;
  };
  save_as("a", 1, std::nullopt);
  save_as("a", 2, CheckpointId{"a", 1});
  save_as("b", 3, CheckpointId{"a", 2});
  EXPECT_EQ(line(3), " a:1 a:2 b:3");
  EXPECT_EQ(line(3, 2), "... a:2 b:3");
  save_as("c", 1, std::nullopt);  // another run's checkpoint of the same step
  EXPECT_EQ(line(3), " a:1? a:2 b:3");
  fs::remove_all(checkpoints_folder(folder.path()) + "/step-00000002");
  EXPECT_EQ(line(3), " a:2? b:3");
}

}  // namespace
}  // namespace mica::checkpoint
