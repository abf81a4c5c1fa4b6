// SPDX-License-Identifier: Apache-2.0
// Damage in every place: an error that names the file, or a load that is right to the last bit. Never a wrong value.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/diff.hpp"
#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/verify.hpp"
#include "mica/io/atomic_file.hpp"

#include "support/temporary_folder.hpp"
#include "support/unreadable_file.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::error_of;
using test::SavedModel;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
namespace fs = std::filesystem;

void overwrite(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes; }

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

enum class Outcome { refused, right };

/// Loads into a model that holds other values; the error must name `file`.
Outcome try_load(SavedModel& model, const std::string& path, const std::string& file, const std::vector<std::vector<std::byte>>& expected) {
  model.fill(9);
  try {
    (void)model.load(path);
  } catch (const CheckpointError& e) {
    EXPECT_THAT(e.what(), HasSubstr(file));
    return Outcome::refused;
  }
  EXPECT_EQ(model.bits(), expected);
  return Outcome::right;
}

/// Tens of thousands of rewritten files belong in memory, where there is such a folder.
class MemoryFolder {
 public:
  MemoryFolder() {
    std::error_code ignored;
    const bool is_ours = ::getenv("TMPDIR") == nullptr && fs::is_directory("/dev/shm", ignored);
    if (is_ours) ::setenv("TMPDIR", "/dev/shm", 1);
    folder_ = std::make_unique<TemporaryFolder>();
    if (is_ours) ::unsetenv("TMPDIR");
  }
  [[nodiscard]] const TemporaryFolder& folder() const { return *folder_; }

 private:
  std::unique_ptr<TemporaryFolder> folder_;
};

TEST(Damage, EveryByteAndEveryTruncationOfASmallCheckpoint) {
  const MemoryFolder memory;
  const TemporaryFolder& folder = memory.folder();
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    model.fill(3);
    const std::string sound = model.save(folder / "sound", 1).path;
    const std::string path = model.save(folder.path(), 1).path;
    const auto expected = model.bits();
    for (const std::string& name : files_of(path)) {
      const std::string file = path + "/" + name;
      const std::string bytes = io::read_file(file);
      ASSERT_GT(bytes.size(), 1000U);
      std::int64_t num_refused = 0;
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        std::string damaged = bytes;
        damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
        overwrite(file, damaged);
        // model.h5 is for other programs: nothing of Mica's reads a value through it.
        if (name != kModelIndexName || i % 50 == 0) {
          num_refused += try_load(model, path, name, expected) == Outcome::refused ? 1 : 0;
        }
        const VerifyReport report = verify(path);
        ASSERT_THAT(report.damage, SizeIs(1)) << name << " byte " << i;
        ASSERT_THAT(report.damage[0], HasSubstr(name));
        if (i % 5 != 0 || name == kModelIndexName) continue;  // through libhdf5, slow: it must not be reached
        ASSERT_THAT(error_of<DamagedCheckpointError>([&] { (void)diff(path, sound); }), HasSubstr(name)) << name << " byte " << i;
      }
      // All of the manifest; of a shard file the data, 3 kinds of (35 + 5 with a gap to 64, and 3) elements.
      const std::int64_t num_harmful = name == kManifestName     ? static_cast<std::int64_t>(bytes.size())
                                       : name == kModelIndexName ? 0
                                                                 : 3 * (69 + 3) * 4;
      EXPECT_EQ(num_refused, num_harmful) << name;
      for (std::size_t length = 0; length < bytes.size(); length += length < 100 ? 1 : 37) {
        overwrite(file, bytes.substr(0, length));
        const Outcome outcome = name == kModelIndexName ? Outcome::right : Outcome::refused;
        ASSERT_EQ(try_load(model, path, name, expected), outcome) << name << " cut to " << length;
        ASSERT_THAT(verify(path).damage, SizeIs(1)) << name << " cut to " << length;
      }
      overwrite(file, bytes + "x");
      EXPECT_EQ(try_load(model, path, name, expected), name == kModelIndexName ? Outcome::right : Outcome::refused);
      EXPECT_THAT(verify(path).damage, SizeIs(1)) << name;
      overwrite(file, bytes);
    }
    EXPECT_EQ(try_load(model, path, "", expected), Outcome::right);
  });
}

// Read through the tables of pieces (here for another wrapping), a shard file's metadata counts too.
TEST(Damage, EveryByteOfAShardIsCheckedForAnotherWrapping) {
  const MemoryFolder memory;
  const TemporaryFolder& folder = memory.folder();
  std::string path;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    model.fill(3);
    path = model.save(folder.path(), 1).path;
  });
  run_local_ranks(1, [&](auto world) {
    SavedModel model(std::move(world), test::small_units(), {.one_unit = true});
    model.fill(3);
    const auto expected = model.bits();
    ASSERT_EQ(try_load(model, path, "", expected), Outcome::right);
    const std::string name = read_manifest(path).files[0].name;
    const std::string bytes = io::read_file(path + "/" + name);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
      overwrite(path + "/" + name, damaged);
      if (try_load(model, path, name, expected) == Outcome::refused) continue;
      ASSERT_EQ(bytes[i], 0) << "byte " << i;  // a gap that no parameter covers, in a block that nobody needs
    }
    overwrite(path + "/" + name, bytes);
    fs::remove(path + "/" + name);
    EXPECT_EQ(try_load(model, path, name, expected), Outcome::refused);
  });
}

TEST(Damage, TheErrorNamesDatasetAndByteRangeOfTheBlock) {
  const TemporaryFolder folder;
  test::with_one_rank({{{"weight", Shape{1200, 1000}, true}}}, [&](SavedModel& model) {
    model.fill(3);
    const std::string path = model.save(folder.path(), 1).path;
    const Manifest manifest = read_manifest(path);
    const DatasetEntry& dataset = manifest.files[0].datasets[1];
    ASSERT_EQ(dataset.num_blocks(), 2);
    EXPECT_EQ(dataset.offset % 4096, 0);
    const std::string file = path + "/" + manifest.files[0].name;
    {
      std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
      stream.seekp(dataset.offset + 4194304 + 1234);
      stream.put('\x55');
    }
    const std::string text = error_of<DamagedCheckpointError>([&] { (void)model.load(path); });
    EXPECT_THAT(text, AllOf(HasSubstr(file), HasSubstr("/units/0/exp_avg"), HasSubstr("bytes 4194304 to 4799999"),
                            HasSubstr("no older complete checkpoint")));
    EXPECT_THAT(verify(path).damage, ::testing::ElementsAre(HasSubstr("bytes 4194304 to 4799999")));
  });
}

// resume=auto stops at a damaged newest checkpoint and says where to go on; it never silently takes an older one.
TEST(Damage, TheNextOlderCompleteCheckpointIsNamed) {
  const TemporaryFolder folder;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    model.fill(3);
    for (const int step : {10, 20, 30, 40}) model.save(folder.path(), step);
    const std::string checkpoints = folder / "checkpoints";
    const auto shard_of = [&](int step) {
      const std::string path = fmt::format("{}/{}", checkpoints, step_folder_name(step));
      return path + "/" + read_manifest(path).files[0].name;
    };
    fs::remove(checkpoints + "/step-00000040/manifest.json");
    overwrite(shard_of(30), io::read_file(shard_of(30)).substr(1));
    std::string bytes = io::read_file(shard_of(20));
    char& first = bytes[static_cast<std::size_t>(read_manifest(checkpoints + "/step-00000020").files[0].datasets[0].offset)];
    first = static_cast<char>(~first);
    overwrite(shard_of(20), bytes);
    const auto newest = newest_complete(folder.path());
    EXPECT_EQ(newest->step, 40);
    EXPECT_THAT(error_of<DamagedCheckpointError>([&] { (void)model.load(newest->path); }),
                AllOf(HasSubstr("manifest is missing"), HasSubstr("the next older complete one is " + checkpoints + "/step-00000020")));
    EXPECT_THAT(error_of<DamagedCheckpointError>([&] { (void)model.load(checkpoints + "/step-00000020"); }),
                AllOf(HasSubstr(shard_of(20)), HasSubstr("the next older complete one is " + checkpoints + "/step-00000010")))
        << "bytes are checked when they are loaded";
    // Of a step whose replacement a job did not finish.
    fs::rename(checkpoints + "/step-00000030", checkpoints + "/step-00000030.replaced");
    fs::remove(checkpoints + "/step-00000030.replaced/manifest.json");
    EXPECT_THAT(error_of<DamagedCheckpointError>([&] { (void)model.load(checkpoints + "/step-00000030.replaced"); }),
                HasSubstr("the next older complete one is " + checkpoints + "/step-00000020"));
    const Manifest manifest = read_manifest(checkpoints + "/step-00000010");
    fs::remove(checkpoints + "/step-00000010/" + manifest.files[0].name);
    EXPECT_THAT(error_of<DamagedCheckpointError>([&] { (void)model.load(checkpoints + "/step-00000010/"); }),
                AllOf(HasSubstr(manifest.files[0].name), HasSubstr("No such file"), HasSubstr("no older complete")));
  });
}

// A file system that fails says nothing about the checkpoint: no older one is recommended, and the status is that of a failure.
TEST(Damage, AFileThatCannotBeReadNowIsNoDamage) {
  const TemporaryFolder folder;
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.fill(3);
    for (const int step : {10, 20}) model.save(folder.path(), step);
    const std::string path = folder / "checkpoints/step-00000020";
    if (model.comm().rank() == 0) test::make_unreadable(path + "/" + read_manifest(path).files[1].name);
    model.comm().agree([] {});
    EXPECT_THAT(error_of<IoError>([&] { (void)model.load(path); }),
                AllOf(HasSubstr("No such device or address"), Not(HasSubstr("resume"))));
    model.comm().agree([] {});
    if (model.comm().rank() != 0) return;
    EXPECT_THAT(verify(path).damage, ::testing::ElementsAre(HasSubstr("No such device or address")));
    test::make_unreadable(path + "/manifest.json");
    EXPECT_THROW((void)verify(path), IoError);
  });
}

// Every shard of a unit has the same kinds of state, or a rank would go on with half of it.
TEST(Damage, AShardWithoutItsOptimizerStateIsRefused) {
  const TemporaryFolder folder;
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.fill(1);
    const std::string path = model.save(folder.path(), 1).path;
    Manifest manifest = open_checkpoint(path, model.comm());
    if (!manifest.files.empty()) std::erase_if(manifest.files[1].datasets, [](const DatasetEntry& d) { return d.kind == "exp_avg"; });
    EXPECT_THAT(error_of<DamagedCheckpointError>([&] {
                  (void)load(path, manifest, {&model.root(), &model.optimizer()}, model.comm());
                }),
                HasSubstr("has other datasets than"));
  });
}

TEST(Damage, AShardOfAnotherRunUnderTheSameNameIsRefused) {
  const TemporaryFolder folder;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    model.fill(3);
    const std::string path = model.save(folder / "a", 1).path;
    model.fill(4);
    const std::string other = model.save(folder / "b", 1).path;
    const std::string name = read_manifest(path).files[0].name;
    ASSERT_EQ(name, read_manifest(other).files[0].name);
    fs::copy_file(other + "/" + name, path + "/" + name, fs::copy_options::overwrite_existing);
    EXPECT_THAT(error_of<DamagedCheckpointError>([&] { (void)model.load(path); }), HasSubstr(name));
    EXPECT_FALSE(verify(path).damage.empty());
  });
}

// The damage is on one rank's file only: all ranks throw, the same.
TEST(Damage, EveryRankThrowsTheSameError) {
  const TemporaryFolder folder;
  run_local_ranks(3, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.fill(3);
    const std::string path = model.save(folder.path(), 1).path;
    if (model.comm().rank() == 0) fs::resize_file(path + "/shard-r0-00000001-00001.h5", 100);
    (void)model.comm().gather_strings("");
    EXPECT_THAT(error_of<DamagedCheckpointError>([&] { (void)model.load(path); }),
                AllOf(HasSubstr("rank 1: "), HasSubstr("shard-r0-00000001-00001.h5: the file has 100 bytes")));
  });
}

}  // namespace
}  // namespace mica::checkpoint
