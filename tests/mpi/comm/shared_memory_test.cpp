// SPDX-License-Identifier: Apache-2.0
// Memory that the processes of a node share.
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "mica/comm/mpi_group.hpp"
#include "mica/core/error.hpp"

#include "support/mpi_test.hpp"
#include "support/shared_parts_checks.hpp"

namespace mica {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kRole = MemoryRole::sharded_param;

class SharedMemory : public ::testing::Test {
 protected:
  mpi::Communicator world = mpi::Communicator::world();
  std::unique_ptr<Pool> pool = make_cpu_pool();
  std::unique_ptr<ProcessGroup> group = make_mpi_group(world.duplicate(), *pool, "shard", {.shares_memory = true});
  std::unique_ptr<Stream> stream = make_cpu_stream("compute", StreamMode::inlined);

  /// What the job's ranks have below /dev/shm under Mica's names. @collective
  std::vector<std::string> segments() {
    world.barrier();
    std::vector<std::string> found;
    for (const std::string& pid : world.gather_strings(std::to_string(getpid()))) {
      for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
        const std::string name = entry.path().filename();
        if (name.starts_with("mica-" + pid + "-")) found.push_back(name);
      }
    }
    world.barrier();
    return found;
  }
  SharedParts allocate(std::int64_t numel) { return group->allocate_parts(*pool, numel, DType::f32, kRole, *stream); }
  std::string refusal_of(std::int64_t numel) {
    try {
      static_cast<void>(allocate(numel));
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "not refused";
  }
  /// The group goes on as if nothing had been asked for.
  void expect_usable() {
    EXPECT_EQ(segments(), std::vector<std::string>{});
    EXPECT_EQ(pool->stats().current, 0);
    EXPECT_EQ(allocate(3).is_shared(), group->num_ranks() > 1);
  }
};

TEST_F(SharedMemory, EveryRoundIsReadWhole_OnSeveralRanks) {
  for (const StreamMode mode : {StreamMode::inlined, comm_stream_mode(testing::session(), StreamMode::threaded)}) {
    testing::check_rounds(*group, mode);
  }
}

TEST_F(SharedMemory, NoNameIsLeftWhileTheMemoryIsUsed) {
  const SharedParts one = allocate(1), many = allocate(1'000'003);
  EXPECT_EQ(segments(), std::vector<std::string>{});
  many.own.as<float>()[1'000'002] = 1;
  world.barrier();
}

/// Of this process.
std::int64_t bytes_of_page_tables() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "VmPTE:") {
  }
  std::int64_t kib = -1;
  status >> kib;
  return kib * 1024;
}

/// Then page tables are smaller than they are planned.
bool has_huge_pages() {
  std::string modes;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), modes);
  return modes.find("[always]") != std::string::npos || modes.find("[force]") != std::string::npos;
}

TEST_F(SharedMemory, EveryRankHasPageTablesForTheWhole_OnSeveralRanks) {
  constexpr std::int64_t kWhole = std::int64_t{32} << 20;
  const std::int64_t before = bytes_of_page_tables();
  ASSERT_GE(before, 0);
  const SharedParts parts = allocate(kWhole / 4 / group->num_ranks());
  const std::int64_t taken = bytes_of_page_tables() - before;
  EXPECT_GE(taken, has_huge_pages() ? 0 : page_table_bytes(parts.whole.bytes()));
  EXPECT_LE(taken, page_table_bytes(parts.whole.bytes()) + (std::int64_t{32} << 10));
  world.barrier();
}

TEST_F(SharedMemory, OnlyWhereItWasAskedFor) {
  EXPECT_FALSE(make_mpi_group(world.duplicate(), *pool, "shard")->shares_memory());
  const bool is_shared = group->num_ranks() > 1;
  EXPECT_EQ(group->shares_memory(), is_shared);
  EXPECT_EQ(group->duplicate("again")->shares_memory(), is_shared);
  EXPECT_FALSE(group->split(group->rank(), 0, "alone")->shares_memory());
}

// What no machine has, and a little more than would be free if nobody else had any.
TEST_F(SharedMemory, TooMuchIsRefusedOnAllRanksAlike_OnSeveralRanks) {
  struct statvfs place {};
  ASSERT_EQ(statvfs("/dev/shm", &place), 0);
  ASSERT_GT(place.f_blocks, 0U) << "/dev/shm has no limit here";
  const auto all = static_cast<std::int64_t>(place.f_blocks * place.f_frsize);
  for (const std::int64_t numel : {std::int64_t{1} << 56, all / 4 / group->num_ranks() + 1}) {
    ASSERT_THAT(refusal_of(numel), AllOf(HasSubstr(fmt::format("group 'shard' of {} ranks needs ", group->num_ranks())),
                                         HasSubstr("bytes of /dev/shm"), HasSubstr("are free"), HasSubstr("mesh.backend=mpi")));
  }
  expect_usable();
}

TEST_F(SharedMemory, WhatCannotBeSharedIsKnownBeforehand) {
  struct statvfs place {};
  ASSERT_EQ(statvfs("/dev/shm", &place), 0);
  const auto all = static_cast<std::int64_t>(place.f_blocks * place.f_frsize);
  EXPECT_EQ(why_no_shared_memory(world, "a model", 1), "");
  EXPECT_EQ(why_no_shared_memory(world, "a model", 1 << 20), "");
  EXPECT_THAT(why_no_shared_memory(world, "a model", all + 1),
              AllOf(HasSubstr(fmt::format("a model needs {} bytes of shared memory", all + 1)), HasSubstr("mesh.backend=mpi")));
  EXPECT_EQ(segments(), std::vector<std::string>{});
  world.barrier();
}

TEST_F(SharedMemory, ALimitOnFilesIsNamedOnAllRanks_OnSeveralRanks) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  if (group->rank() == 0) {
    const rlimit small{.rlim_cur = 8192, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  const std::string error = refusal_of(4096);
  if (group->rank() == 0) {
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  }
  EXPECT_THAT(error, AllOf(HasSubstr("at most 8192 bytes"), HasSubstr("ulimit -f"), HasSubstr("mesh.backend=mpi")));
  expect_usable();
}

// Of a pool of one rank: the others do not wait for it.
TEST_F(SharedMemory, APoolWithoutRoomOnOneRankFailsAll_OnSeveralRanks) {
  if (group->rank() == 1) pool->set_limit(100);
  try {
    static_cast<void>(allocate(1000));
    ADD_FAILURE() << "expected an IoError";
  } catch (const IoError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("rank 1: "), HasSubstr("at most 100")));
  }
  expect_usable();
}

// abort() ends a wait also in a group whose collectives it cannot end.
TEST_F(SharedMemory, AbortEndsAWait_OnSeveralRanks) {
  const auto waiting = make_cpu_stream("compute", StreamMode::threaded);
  const SharedParts parts = allocate(3);
  if (group->rank() == 0) {
    group->wait_for_written(*waiting, "h.0", parts, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it waits now, and does not only find the group aborted
    group->abort("rank 1 does not answer");
    try {
      waiting->synchronize();
      ADD_FAILURE() << "expected an Error";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), AllOf(HasSubstr("wait_for_written 'h.0'"), HasSubstr("rank 1 does not answer")));
    }
  }
  world.barrier();
}

}  // namespace
}  // namespace mica
