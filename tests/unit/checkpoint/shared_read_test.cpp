// SPDX-License-Identifier: Apache-2.0
// What ranks read, hear and write of a checkpoint grows with what they hold.

#include <atomic>
#include <mutex>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "read_plan.hpp"
#include "save_job.hpp"
#include "support/temporary_folder.hpp"
#include "unit/checkpoint/board_comm.hpp"
#include "unit/checkpoint/bytes_read.hpp"
#include "unit/checkpoint/counting_comm.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::Board;
using test::BoardComm;
using test::bytes_read_by_process;
using test::CountingComm;
using test::SavedModel;
using test::ShardedOptions;
using test::TemporaryFolder;

ShardedOptions split_along(int dim) {
  ShardedOptions options;
  options.fsdp.sharding = fsdp::Sharding::per_parameter;
  options.fsdp.shard_dims = {{.pattern = "*.weight", .dim = dim}};
  return options;
}

struct Change {
  const char* name;
  ShardedOptions writer, reader;
};

class On64Ranks : public ::testing::TestWithParam<Change> {};

// Every rank holds a little of many blocks, and a block can only be checked as a whole.
TEST_P(On64Ranks, AllTogetherReadTheFilesOnce) {
  constexpr int kRanks = 64;
  const test::Units units{{{"weight", Shape{256, 640}, true}, {"bias", Shape{67}}}, {{"weight", Shape{641, 128}, true}}};
  const TemporaryFolder folder;
  run_local_ranks(kRanks, [&](auto world) {
    SavedModel saved(std::move(world), units, GetParam().writer);
    saved.fill(7);
    saved.save(folder.path(), 1);
  });
  const std::string path = folder / "checkpoints/step-00000001";
  const Manifest manifest = read_manifest(path);
  std::int64_t data = 0;
  for (const FileEntry& file : manifest.files) {
    for (const DatasetEntry& dataset : file.datasets) data += dataset.bytes;
  }
  std::atomic<std::int64_t> reported{0};
  std::int64_t before = 0;
  std::int64_t after = 0;
  run_local_ranks(kRanks, [&](auto world) {
    auto world2 = world->duplicate("expected");
    SavedModel loaded(std::move(world), units, GetParam().reader);
    SavedModel expected(std::move(world2), units, GetParam().reader);
    expected.fill(7);
    (void)loaded.comm().gather_strings("");
    if (loaded.comm().rank() == 0) before = bytes_read_by_process();
    (void)loaded.comm().gather_strings("");
    reported += loaded.load(path).bytes;
    (void)loaded.comm().gather_strings("");
    if (loaded.comm().rank() == 0) after = bytes_read_by_process();
    EXPECT_EQ(loaded.bits(), expected.bits());
  });
  EXPECT_LE(reported, data);  // a shard that is all padding is not read
  EXPECT_GE(reported, 3 * 4 * manifest.num_parameters());
  // Beside the data each file's tables, which are checked and then read: once in all. And the manifest.
  std::int64_t tables = 0;
  for (const FileEntry& file : manifest.files) tables += file.bytes;
  tables -= data;
  EXPECT_LE(after - before, data * 12 / 10 + 3 * tables + static_cast<std::int64_t>(manifest_text(manifest).size()));
}

INSTANTIATE_TEST_SUITE_P(From, On64Ranks,
                         ::testing::Values(Change{"rows_to_flat", split_along(0), {}}, Change{"columns_to_flat", split_along(1), {}},
                                           Change{"flat_to_rows", {}, split_along(0)}, Change{"flat_to_columns", {}, split_along(1)},
                                           Change{"rows_to_columns", split_along(0), split_along(1)}),
                         [](const auto& info) { return info.param.name; });

/// Units enough that a rank's entry in the manifest is long.
test::Units many_units() {
  test::Units units;
  for (int u = 0; u < 20; ++u) units.push_back({{"weight", Shape{16, 5}, true}, {"bias", Shape{16}}});
  return units;
}

// What the other ranks wrote is rank 0's business alone: it was so much on every rank as there were ranks.
TEST(Entries, OnlyTheFirstRankHearsOfAllFiles) {
  for (const int num_ranks : {4, 64}) {  // ThreadSanitizer has no address space for the pools of 256
    const TemporaryFolder folder;
    std::mutex mutex;
    std::map<int, std::int64_t> saving, loading;  // by rank: bytes heard
    Board board(num_ranks);
    run_local_ranks(num_ranks, [&](auto world) {
      const BoardComm comm(board, world->rank());
      SavedModel model(std::move(world), many_units());
      model.fill(1);
      const CountingComm counting(comm);
      const std::string path = save(folder.path(), model.state(1), counting).path;
      const std::lock_guard lock(mutex);
      saving[counting.rank()] = counting.bytes();
    });
    const std::string path = folder / "checkpoints/step-00000001";
    const Manifest manifest = read_manifest(path);
    const auto entry_bytes = std::ssize(file_entry_text(manifest.files.back()));
    Manifest header = manifest;
    header.files.clear();
    const auto header_bytes = std::ssize(manifest_text(header));
    run_local_ranks(num_ranks, [&](auto world) {
      const BoardComm comm(board, world->rank());
      SavedModel model(std::move(world), many_units());
      const CountingComm counting(comm);
      const Manifest mine = open_checkpoint(path, counting);
      EXPECT_EQ(std::ssize(mine.files), counting.rank() == 0 ? num_ranks : 0);
      (void)load(path, mine, {&model.root(), &model.optimizer()}, counting);
      const std::lock_guard lock(mutex);
      loading[counting.rank()] = counting.bytes();
    });
    ASSERT_GT(entry_bytes, 5000);
    EXPECT_GT(saving[0], (num_ranks - 1) * entry_bytes);
    for (int r = 1; r < num_ranks; ++r) {
      EXPECT_LT(saving[r], 2000 + 20 * num_ranks) << "rank " << r << " of " << num_ranks;
      EXPECT_LT(loading[r], header_bytes + entry_bytes + 3000 + 20 * num_ranks) << "rank " << r << " of " << num_ranks;
    }
  }
}

struct ReaderGrid {
  int replicas, shard_size;
};
class Replicas : public ::testing::TestWithParam<ReaderGrid> {};

TEST_P(Replicas, ShareTheReading) {
  const auto [replicas, shard_size] = GetParam();
  ShardedOptions options{.shard_size = shard_size};
  options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
  // A shard of the weight is more than two blocks of 4 MiB, so that each replica has one to read.
  const test::Units units{{{"weight", Shape{1021, shard_size * 2311}, true}, {"bias", Shape{13}}}};
  const TemporaryFolder folder;
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(replicas * shard_size));
  std::atomic<int> num_writers{0};
  run_local_ranks(replicas * shard_size, [&](auto world) {
    auto world2 = world->duplicate("loaded");
    SavedModel saved(std::move(world), units, options);
    saved.fill(7);
    const SaveReport report = saved.save(folder.path(), 1);
    num_writers += report.shard_bytes > 0 ? 1 : 0;
    SavedModel loaded(std::move(world2), units, options);
    loaded.fill(8);
    bytes[static_cast<std::size_t>(loaded.comm().rank())] = loaded.load(report.path).bytes;
    EXPECT_EQ(loaded.bits(), saved.bits());
  });
  EXPECT_EQ(num_writers, shard_size);
  const Manifest manifest = read_manifest(folder / "checkpoints/step-00000001");
  for (int shard = 0; shard < shard_size; ++shard) {
    std::int64_t expected = 0;
    std::int64_t found = 0;
    for (const DatasetEntry& d : manifest.files[static_cast<std::size_t>(shard)].datasets) expected += d.bytes;
    for (int replica = 0; replica < replicas; ++replica) {
      const std::int64_t of_one = bytes[static_cast<std::size_t>(replica * shard_size + shard)];
      EXPECT_GT(of_one, 0);
      EXPECT_LE(of_one, expected / replicas + kBlockBytes);
      found += of_one;
    }
    EXPECT_EQ(found, expected) << "shard " << shard;
  }
}

// A run without sharding has all of its data in the first file: one rank read it and sent it to each of the others.
TEST(UnshardedRun, AllRanksShareTheReading) {
  constexpr int kRanks = 3;
  ShardedOptions options;
  options.fsdp.strategy = fsdp::Strategy::no_shard;
  const test::Units units{{{"weight", Shape{1021, 3 * 2311}, true}, {"bias", Shape{13}}}};
  const TemporaryFolder folder;
  std::vector<std::int64_t> bytes(kRanks);
  run_local_ranks(kRanks, [&](auto world) {
    auto world2 = world->duplicate("loaded");
    SavedModel saved(std::move(world), units, options);
    saved.fill(7);
    const SaveReport report = saved.save(folder.path(), 1);
    SavedModel loaded(std::move(world2), units, options);
    loaded.fill(8);
    bytes[static_cast<std::size_t>(loaded.comm().rank())] = loaded.load(report.path).bytes;
    EXPECT_EQ(loaded.bits(), saved.bits());
  });
  std::int64_t all = 0;
  for (const FileEntry& file : read_manifest(folder / "checkpoints/step-00000001").files) {
    for (const DatasetEntry& d : file.datasets) all += d.bytes;
  }
  for (const std::int64_t of_one : bytes) EXPECT_LE(of_one, all / kRanks + kBlockBytes);
  EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}), all);
}

// The checksums of a large shard are most of its entry, which went whole to each of its readers: on thousands of ranks gigabytes.
TEST(Entries, AReaderHearsTheChecksumsOfItsBlocksOnly) {
  constexpr int kRanks = 16;
  constexpr std::int64_t kBlocks = 100'000;
  ShardedOptions options{.shard_size = 1};
  options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
  Board board(kRanks);
  const TemporaryFolder folder;
  run_local_ranks(kRanks, [&](auto world) {
    const BoardComm comm(board, world->rank());
    SavedModel model(std::move(world), test::small_units(), options);
    const std::string path = save(folder.path(), model.state(1), comm).path;
    Manifest manifest = open_checkpoint(path, comm);
    if (comm.rank() == 0) {
      DatasetEntry& dataset = manifest.files.at(0).datasets.at(0);
      dataset.bytes = kBlocks * kBlockBytes;
      dataset.block_crcs.resize(kBlocks);
      std::iota(dataset.block_crcs.begin(), dataset.block_crcs.end(), 0U);
    }
    std::vector<int> mesh_ranks(kRanks);
    std::iota(mesh_ranks.begin(), mesh_ranks.end(), 0);
    const CountingComm counting(comm);
    const std::vector<SavedUnit> units = saved_units(model.root());
    const ReadPlan plan = make_read_plan({path, manifest, counting, units, model.root().device_mesh().mesh(), mesh_ranks, true});
    EXPECT_LT(counting.bytes(), 4 * kBlocks / kRanks + 3000);
    ASSERT_EQ(plan.parts.size(), 1U);
    const FilePart& part = plan.parts[0];
    EXPECT_GE(part.last - part.first, kBlocks / kRanks);
    for (std::int64_t b = part.first; b < std::min(part.last, kBlocks); ++b) {
      ASSERT_EQ(part.file.datasets[0].block_crcs.at(static_cast<std::size_t>(b)), static_cast<std::uint32_t>(b));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Of, Replicas, ::testing::Values(ReaderGrid{2, 2}, ReaderGrid{2, 3}, ReaderGrid{3, 2}, ReaderGrid{3, 1}),
                         [](const auto& info) { return fmt::format("{}x{}", info.param.replicas, info.param.shard_size); });

}  // namespace
}  // namespace mica::checkpoint
