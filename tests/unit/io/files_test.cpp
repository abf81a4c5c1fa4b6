// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/mapped_file.hpp"
#include "mica/io/raw_file.hpp"

#include "support/temporary_folder.hpp"

namespace {
std::atomic<int> g_fsync_error = 0;             ///< what fsync fails with; 0: it works
std::atomic<bool> g_fails_for_folders = false;  ///< or for files
std::atomic<int> g_failed_fsyncs = 0;
}  // namespace

/// Stands before the C library's.
extern "C" int fsync(int fd) {
  struct stat status {};
  if (g_fsync_error != 0 && ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode) == g_fails_for_folders) {
    ++g_failed_fsyncs;
    errno = g_fsync_error;
    return -1;
  }
  static const auto real = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "fsync"));
  return real(fd);
}

namespace mica::io {
namespace {

/// While it lives, fsync of folders, or of files, fails with this error.
class FailingFsync {
 public:
  enum class Of : std::uint8_t { files, folders };
  FailingFsync(Of of, int error_number) {
    g_failed_fsyncs = 0;
    g_fails_for_folders = of == Of::folders;
    g_fsync_error = error_number;
  }
  ~FailingFsync() { g_fsync_error = 0; }
  FailingFsync(const FailingFsync&) = delete;
  FailingFsync& operator=(const FailingFsync&) = delete;
  [[nodiscard]] int num_calls() const { return g_failed_fsyncs; }
};

using test::error_of;
using test::TemporaryFolder;
using ::testing::HasSubstr;

TEST(AtomicFile, WritesAndReplacesWholeFiles) {
  const TemporaryFolder folder;
  const std::string path = folder / "manifest.json";
  write_file_atomically(path, "first");
  write_file_atomically(path, "");
  EXPECT_EQ(read_file(path), "");
  const std::string binary("a\0b\n", 4);
  write_file_atomically(path, binary);
  EXPECT_EQ(read_file(path), binary);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(AtomicFile, AFailureLeavesTheOldFileAndNoRest) {
  const TemporaryFolder folder;
  const std::string path = folder / "sub";
  std::filesystem::create_directory(path);
  std::ofstream(path + "/inside") << "x";
  const std::string text = error_of<IoError>([&] { write_file_atomically(path, "text"); });  // a folder is in the way
  EXPECT_THAT(text, HasSubstr("sub"));
  EXPECT_THAT(text, HasSubstr("rename"));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_THAT(error_of<IoError>([&] { write_file_atomically(folder / "absent/x", "text"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of<IoError>([&] { (void)read_file(folder / "absent"); }), HasSubstr("absent"));
}

TEST(AtomicFile, PublishesAFolder) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "step-1.tmp");
  write_file_atomically(folder / "step-1.tmp/manifest", "m");
  Publication(folder / "step-1", folder / "step-1.tmp").publish();
  EXPECT_EQ(read_file(folder / "step-1/manifest"), "m");
}

TEST(AtomicFile, WhatIsNotPublishedIsDeleted) {
  const TemporaryFolder folder;
  for (const bool is_published : {false, true}) {
    Publication file(folder / "file");
    std::ofstream(file.temporary()) << "x";
    Publication made = new_folder(folder / "made/");
    write_file_atomically(made.temporary() + "/inside", "x");
    EXPECT_THAT(error_of<ConfigError>([&] { (void)new_folder(folder / "made"); }), HasSubstr("made.tmp: exists already"));
    if (!is_published) continue;
    file.publish();
    made.publish();
  }
  EXPECT_EQ(read_file(folder / "file") + read_file(folder / "made/inside"), "xx");
  EXPECT_FALSE(std::filesystem::exists(folder / "file.tmp") || std::filesystem::exists(folder / "made.tmp"));
  EXPECT_THAT(error_of<ConfigError>([&] { check_new(folder / "made"); }), HasSubstr("nothing is overwritten"));
  EXPECT_THAT(error_of<ConfigError>([&] { check_new(folder / "no/made"); }), HasSubstr("there is no folder"));
  // A folder that somebody else made under a file's temporary name is not Mica's to delete.
  std::filesystem::create_directory(folder / "taken.tmp");
  EXPECT_THROW(write_file_atomically(folder / "taken", "x"), IoError);
  EXPECT_TRUE(std::filesystem::exists(folder / "taken.tmp"));
  EXPECT_THAT(error_of<ConfigError>([&] { make_folder(folder / "file/x", "; advice"); }), HasSubstr("; advice"));
}

// Some mounts (FUSE, some parallel file systems) cannot fsync a folder: that is no failure; any other error is.
TEST(AtomicFile, AMountThatCannotFsyncFoldersServes) {
  const TemporaryFolder folder;
  for (const int refused : {EINVAL, EBADF}) {
    const FailingFsync failing(FailingFsync::Of::folders, refused);
    write_file_atomically(folder / "file", "text");
    EXPECT_EQ(read_file(folder / "file"), "text");
    EXPECT_GE(failing.num_calls(), 1);
  }
  const FailingFsync failing(FailingFsync::Of::folders, EIO);
  EXPECT_THAT(error_of<IoError>([&] { fsync_directory(folder.path()); }), HasSubstr("fsync"));
}

// A file that may not be on the disk is not published, whatever the mount says.
TEST(AtomicFile, AFileThatCannotBeSyncedIsAnError) {
  const TemporaryFolder folder;
  for (const int refused : {EINVAL, EIO}) {
    const FailingFsync failing(FailingFsync::Of::files, refused);
    EXPECT_THAT(error_of<IoError>([&] { write_file_atomically(folder / "file", "text"); }), HasSubstr("fsync"));
    EXPECT_GE(failing.num_calls(), 1);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(AtomicFile, ParentDirectory) {
  EXPECT_EQ(parent_directory("a/b/c"), "a/b");
  EXPECT_EQ(parent_directory("a/b/"), "a");
  EXPECT_EQ(parent_directory("a//b"), "a");
  EXPECT_EQ(parent_directory("a"), ".");
  EXPECT_EQ(parent_directory("a/"), ".");
  EXPECT_EQ(parent_directory(""), ".");
  EXPECT_EQ(parent_directory("/a"), "/");
  EXPECT_EQ(parent_directory("/"), "/");
}

/// Every mix of ragged offsets, lengths and memory alignments, on a disk and on a tmpfs (which may refuse direct
/// transfers).
class RawFileTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RawFileTest, MovesAnyRangeEitherWay) {
  const std::string path = GetParam() + fmt::format("/mica-raw-{}", ::getpid());
  constexpr std::int64_t kBytes = 5 << 20;  // past the bounce buffer
  std::vector<unsigned char> source(kBytes + 8192);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i * 2654435761U >> 13);
  for (const std::int64_t offset : {0, 1, 4095, 4096, 5000}) {
    for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{1}, std::int64_t{4096}, std::int64_t{12345}, kBytes}) {
      for (const std::size_t skew : {0, 3, 64}) {
        for (const Caching write_caching : {Caching::page_cache, Caching::direct}) {
          auto file = RawFile::create(path, write_caching);
          file.write_at(offset, source.data() + skew, bytes);
          file.sync();
          ASSERT_EQ(file.file_bytes(), bytes == 0 ? 0 : offset + bytes);
          file.close();
          if (bytes == kBytes && skew == 3 && offset != 5000) continue;  // the big ones are slow
          for (const Caching read_caching : {Caching::page_cache, Caching::direct}) {
            auto reader = RawFile::open_for_reading(path, read_caching);
            std::vector<unsigned char> back(static_cast<std::size_t>(bytes) + 8, 0xee);
            reader.read_at(offset, back.data() + skew % 8, bytes);
            ASSERT_EQ(std::memcmp(back.data() + skew % 8, source.data() + skew, static_cast<std::size_t>(bytes)), 0)
                << offset << " " << bytes << " " << skew;
            ASSERT_EQ(back.back(), 0xee);
          }
        }
      }
    }
  }
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(FileSystems, RawFileTest, ::testing::Values("/tmp", "/dev/shm"));

TEST(RawFile, WritesInPlaceWithoutTouchingTheRest) {
  const TemporaryFolder folder;
  std::ofstream(folder / "x") << std::string(20000, 'a');
  auto file = RawFile::open_for_writing(folder / "x", Caching::direct);
  file.write_at(3000, std::string(10000, 'b').data(), 10000);
  file.close();
  EXPECT_EQ(read_file(folder / "x"), std::string(3000, 'a') + std::string(10000, 'b') + std::string(7000, 'a'));
}

TEST(RawFile, ReservesSpaceAndKeepsTheContent) {
  const TemporaryFolder folder;
  auto file = RawFile::create(folder / "x");
  file.write_at(0, "abc", 3);
  file.reserve(1 << 20);
  file.reserve(0);
  file.reserve(10);  // never makes a file shorter
  EXPECT_TRUE(file.file_bytes() == 1 << 20 || file.file_bytes() == 3);
  char text[4] = {};
  file.read_at(0, text, 3);
  EXPECT_STREQ(text, "abc");
  const std::string full = error_of<IoError>([&] { file.reserve(std::int64_t{1} << 50); });
  EXPECT_THAT(full, ::testing::AllOf(HasSubstr("allocation of 1125899906842624 bytes")));
}

TEST(RawFile, ErrorsSayWhatWhereAndWhy) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of<IoError>([&] { (void)RawFile::open_for_reading(folder / "absent"); }),
              ::testing::AllOf(HasSubstr("absent"), HasSubstr("No such file")));
  std::ofstream(folder / "x") << std::string(10000, 'a');
  for (const Caching caching : {Caching::page_cache, Caching::direct}) {
    auto file = RawFile::open_for_reading(folder / "x", caching);
    std::vector<char> data(20000);
    const std::string text = error_of<IoError>([&] { file.read_at(100, data.data(), 20000); });
    EXPECT_THAT(text, HasSubstr("ends at byte 10000"));
    EXPECT_THAT(text, HasSubstr("20000 bytes from byte 100"));
    EXPECT_THROW(file.write_at(0, data.data(), 10), IoError);
  }
}

TEST(RawFile, AFullDiskIsNamedWithTheFreeSpace) {
  std::ofstream probe("/dev/full");
  if (!probe) GTEST_FAIL() << "/dev/full is missing";
  auto file = RawFile::open_for_writing("/dev/full");
  const std::string text = error_of<IoError>([&] { file.write_at(0, "x", 1); });
  EXPECT_THAT(text, HasSubstr("/dev/full"));
  EXPECT_THAT(text, HasSubstr("No space left"));
  EXPECT_THAT(text, HasSubstr("bytes free"));
}

TEST(MappedFile, MapsAndNoticesAShrunkFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  std::ofstream(path) << "hello";
  auto mapped = MappedFile::open(path);
  ASSERT_EQ(mapped.bytes().size(), 5U);
  EXPECT_EQ(std::memcmp(mapped.bytes().data(), "hello", 5), 0);
  mapped.check_unchanged();
  auto moved = std::move(mapped);
  EXPECT_EQ(moved.bytes().size(), 5U);
  EXPECT_TRUE(mapped.bytes().empty());  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move): that is what is tested
  {
    auto other = MappedFile::open(path);
    other = std::move(moved);  // each of the two mappings ends once, where its owner does
    moved = std::move(other);
  }
  EXPECT_EQ(std::memcmp(moved.bytes().data(), "hello", 5), 0);
  std::filesystem::resize_file(path, 2);
  EXPECT_THAT(error_of<IoError>([&] { moved.check_unchanged(); }), HasSubstr("shrank"));
  {  // another file under its name: the mapping is still of the old one
    std::filesystem::rename(path, path + ".old");
    moved.check_unchanged();
    std::ofstream(path) << "x";
    moved.check_unchanged();
    std::filesystem::rename(path + ".old", path);
    EXPECT_THROW(moved.check_unchanged(), IoError);
  }
  std::filesystem::resize_file(path, 0);
  EXPECT_TRUE(MappedFile::open(path).bytes().empty());
  EXPECT_THAT(error_of<IoError>([&] { (void)MappedFile::open(folder.path()); }), HasSubstr("folder"));
  EXPECT_THROW((void)MappedFile::open(folder / "absent"), IoError);
}

}  // namespace
}  // namespace mica::io
