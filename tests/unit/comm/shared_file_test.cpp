// SPDX-License-Identifier: Apache-2.0
#include "shared_file.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace mica::detail {
namespace {

std::string path_of(const std::string& name) { return "/dev/shm" + name; }
bool exists(const std::string& name) { return std::filesystem::exists(path_of(name)); }

/// The name of the file of a process that was killed while it had one.
std::string left_by_a_killed_process() {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const SharedFile file = SharedFile::make();
    (void)!::write(ends[1], file.name().data(), file.name().size());
    ::raise(SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  ::close(ends[1]);
  char text[128];
  const ssize_t num_read = ::read(ends[0], text, sizeof text);
  ::close(ends[0]);
  return {text, static_cast<std::size_t>(std::max<ssize_t>(num_read, 0))};
}

TEST(SharedFile, ItsBytesAreSharedAndOutliveItsName) {
  SharedFile made = SharedFile::make();
  ASSERT_TRUE(made);
  ASSERT_EQ(::ftruncate(made.fd(), 4096), 0);
  const std::string name = made.name();
  const auto theirs = SharedFile::open(name, O_RDONLY).map(4096, PROT_READ);
  const auto ours = made.map(4096, PROT_READ | PROT_WRITE);
  ASSERT_TRUE(theirs && ours);
  EXPECT_TRUE(exists(name)) << "only its maker removes the name";
  made.remove_name();
  EXPECT_FALSE(exists(name));
  EXPECT_FALSE(SharedFile::open(name, O_RDONLY));
  EXPECT_EQ(SharedFile::open(name, O_RDONLY).map(4096, PROT_READ), nullptr);
  made = SharedFile();
  ours.get()[4095] = std::byte{7};
  EXPECT_EQ(theirs.get()[4095], std::byte{7});
}

TEST(SharedFile, ItsNameGoesWithItsMakersObject) {
  std::string name, replaced;
  {
    SharedFile made = SharedFile::make();
    name = made.name();
    SharedFile other = SharedFile::make();
    replaced = other.name();
    other = std::move(made);
    EXPECT_FALSE(exists(replaced));
    EXPECT_TRUE(exists(name));
  }
  EXPECT_FALSE(exists(name));
}

TEST(SharedFile, WhatAKilledProcessLeftIsRemoved) {
  const std::string left = left_by_a_killed_process();
  const std::string foreign = "/mica-tokens-" + std::to_string(::getpid());
  const UniqueFd not_ours(::shm_open(foreign.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR));
  const SharedFile used = SharedFile::make();
  // Another process that makes one may just be looking at what is left.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (exists(left) && std::chrono::steady_clock::now() < deadline) SharedFile::remove_leftovers();
  EXPECT_FALSE(exists(left));
  EXPECT_TRUE(exists(used.name())) << "its maker lives";
  EXPECT_TRUE(exists(foreign)) << "a user's own file";
  ::shm_unlink(foreign.c_str());
}

}  // namespace
}  // namespace mica::detail
