// SPDX-License-Identifier: Apache-2.0
#include "shared_file.hpp"

#include <algorithm>
#include <csignal>
#include <ctime>
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

void make_older(const std::string& name, std::time_t seconds) {
  const timespec then{std::time(nullptr) - seconds, 0};
  const timespec times[]{then, then};
  ASSERT_EQ(::utimensat(AT_FDCWD, path_of(name).c_str(), times, 0), 0);
}

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

TEST(SharedFile, WhatAKilledProcessLeftIsRemovedAfterAMinute) {
  const std::string old = left_by_a_killed_process(), young = left_by_a_killed_process();
  const SharedFile used = SharedFile::make();
  ASSERT_TRUE(exists(old) && exists(young) && exists(used.name()));
  make_older(old, 70);
  make_older(young, 30);
  make_older(used.name(), 3600);
  const SharedFile next = SharedFile::make();
  EXPECT_FALSE(exists(old));
  EXPECT_TRUE(exists(young)) << "its maker may not have locked it yet";
  EXPECT_TRUE(exists(used.name())) << "its maker lives";
  make_older(young, 70);
  const SharedFile one_more = SharedFile::make();
  EXPECT_FALSE(exists(young));
}

}  // namespace
}  // namespace mica::detail
