// SPDX-License-Identifier: Apache-2.0
// What is said of a page that cannot be read, by processes that really touch one.
#include "mica/core/bus_error.hpp"

#include <array>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/temporary_folder.hpp"

namespace mica {
namespace {

constexpr std::size_t kBytes = 1 << 16;

/// A file of kBytes of which all but 100 are cut once it is mapped. nullptr: it cannot be made.
const std::byte* map_and_cut(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, kBytes) != 0) return nullptr;
  const void* const mapped = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED || ::ftruncate(fd, 100) != 0) return nullptr;
  return static_cast<const std::byte*>(mapped);
}

void touch_what_was_cut(const std::string& path) {
  std::signal(SIGBUS, SIG_DFL);  // sanitizers have theirs
  tell_bus_errors("rank 3: ");
  const std::byte* const bytes = map_and_cut(path);
  if (bytes == nullptr) ::_exit(99);
  ::_exit(static_cast<const volatile std::byte*>(bytes)[kBytes - 1] == std::byte{0} ? 97 : 96);
}

TEST(BusErrorDeathTest, AFileThatWasCutIsNamed) {
  const test::TemporaryFolder folder;
  EXPECT_EXIT(touch_what_was_cut(folder / "a b.bin"), ::testing::ExitedWithCode(3),
              "^mica: error: rank 3: a page of " + (folder / "a b.bin") + " cannot be read \\(bus error\\): the file has become shorter");
}

TEST(CopyPages, SaysWhetherPagesCanBeRead) {
  const test::TemporaryFolder folder;
  const std::byte* const bytes = map_and_cut(folder / "x.bin");
  ASSERT_NE(bytes, nullptr);
  std::array<std::byte, 10> out{};
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(copy_pages(out, bytes));
    EXPECT_FALSE(copy_pages(out, bytes + kBytes - 10));
  }
}

TEST(BusErrorDeathTest, SharedMemoryThatIsNotThere) {
  const std::string path = "/dev/shm/mica-bus-error-" + std::to_string(::getpid());
  EXPECT_EXIT(touch_what_was_cut(path), ::testing::KilledBySignal(SIGBUS), "^mica: error: rank 3: no memory is left for a page of " + path);
  std::filesystem::remove(path);
}

TEST(BusErrorDeathTest, ASignalThatWasSentEndsTheProcessAsBefore) {
  const auto send = [] {
    std::signal(SIGBUS, SIG_DFL);
    tell_bus_errors("");
    ::kill(::getpid(), SIGBUS);
    ::_exit(97);
  };
  EXPECT_EXIT(send(), ::testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace mica
