// SPDX-License-Identifier: Apache-2.0
#include "mica/train/run_folder.hpp"

#include <cstdint>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/io/raw_file.hpp"

#include "support/temporary_folder.hpp"

namespace mica::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(DiskSpace, WhatDoesNotFitIsRefused) {
  const test::TemporaryFolder folder;
  const auto free_bytes = io::free_bytes(folder.path()).value();
  EXPECT_NO_THROW(check_disk_space(folder.path(), 4096, "a checkpoint"));
  EXPECT_THAT(test::error_of<ConfigError>([&] { check_disk_space(folder.path(), 4 * free_bytes, "a checkpoint"); }),
              AllOf(StartsWith("the disk of run folder " + folder.path() + " has "),
                    HasSubstr("a checkpoint takes " + std::to_string(4 * free_bytes)), HasSubstr("--run.dir")));
  EXPECT_NO_THROW(check_disk_space("/proc", 4096, "a checkpoint")) << "a file system that does not tell its size";
}

TEST(DiskSpace, CheckpointsMayBeOnAnotherDisk) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(disk_of_checkpoints(folder.path()), folder.path());
  std::filesystem::create_directory_symlink("/dev/shm", folder / "checkpoints");
  EXPECT_EQ(disk_of_checkpoints(folder.path()), folder / "checkpoints");
}

}  // namespace
}  // namespace mica::train
