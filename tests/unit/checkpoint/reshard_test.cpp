// SPDX-License-Identifier: Apache-2.0
// A checkpoint is loaded on any mesh, with any layout and wrapping.

#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/verify.hpp"
#include "mica/io/hdf5.hpp"

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/counting_comm.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::SavedModel;
using test::ShardedOptions;
using test::TemporaryFolder;
using ::testing::IsEmpty;

struct How {
  int num_ranks = 1;
  bool per_parameter = false;
  bool hybrid = false;  // shard_size 2
  bool one_unit = false;
  std::vector<int> unsharded{};
  std::vector<fsdp::ShardDim> shard_dims{};

  [[nodiscard]] std::string name() const {
    return fmt::format("{}{}{}{}{}{}", num_ranks, per_parameter ? "p" : "f", hybrid ? "h" : "", one_unit ? "o" : "",
                       unsharded.empty() ? "" : "u", shard_dims.empty() ? "" : "d");
  }
  [[nodiscard]] ShardedOptions options() const {
    ShardedOptions options{.unsharded = unsharded, .one_unit = one_unit};
    if (hybrid) {
      options.shard_size = 2;
      options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
    }
    options.fsdp.sharding = per_parameter ? fsdp::Sharding::per_parameter : fsdp::Sharding::flat;
    options.fsdp.shard_dims = shard_dims;
    return options;
  }
};

/// Saves element_value(salt), reads it on every mesh of `readers` and expects the same.
void save_and_read(const test::Units& units, const How& writer, const std::vector<How>& readers) {
  constexpr int kSalt = 7;
  const TemporaryFolder folder;
  std::string path;
  run_local_ranks(writer.num_ranks, [&](auto world) {
    SavedModel saved(std::move(world), units, writer.options());
    saved.fill(kSalt);
    const std::string at = saved.save(folder.path(), 500).path;
    if (saved.comm().rank() == 0) path = at;
  });
  ASSERT_THAT(verify(path).damage, IsEmpty());
  for (const How& reader : readers) {
    run_local_ranks(reader.num_ranks, [&](auto world) {
      auto world2 = world->duplicate("expected");
      SavedModel loaded(std::move(world), units, reader.options());
      loaded.fill(kSalt + 1);
      SavedModel expected(std::move(world2), units, reader.options());
      expected.fill(kSalt);
      const LoadReport report = loaded.load(path);
      EXPECT_THAT(report.notes, IsEmpty());
      EXPECT_EQ(loaded.bits(), expected.bits()) << writer.name() << " read on " << reader.name();
      EXPECT_EQ(loaded.optimizer().num_steps(), kSalt);
    });
  }
}

std::vector<How> all_meshes() {
  std::vector<How> all;
  for (const int num_ranks : {1, 2, 3, 4, 8}) {
    for (const bool per_parameter : {false, true}) {
      all.push_back({.num_ranks = num_ranks, .per_parameter = per_parameter});
      if (num_ranks % 2 == 0) all.push_back({.num_ranks = num_ranks, .per_parameter = per_parameter, .hybrid = true});
    }
  }
  return all;
}

/// Fewer elements than ranks, 1-D to 4-D, nothing that divides.
test::Units matrix_units() {
  return {{{"weight", Shape{13, 11}, true}, {"bias", Shape{13}}},
          {{"tiny", Shape{1}}, {"four", Shape{2, 3, 5, 7}, true}},
          {{"three", Shape{11, 3, 1}, true}}};
}

class Resharding : public ::testing::TestWithParam<How> {};

TEST_P(Resharding, F2_IsBitExactOnEveryMesh) { save_and_read(matrix_units(), GetParam(), all_meshes()); }

INSTANTIATE_TEST_SUITE_P(From, Resharding, ::testing::ValuesIn(all_meshes()), [](const auto& info) { return info.param.name(); });

// Other wrapping, units that are not sharded, and parameters cut along inner dims.
TEST(Resharding, AcrossWrappingsAndDims) {
  const test::Units units{{{"weight", Shape{13, 12}, true}, {"bias", Shape{13}}},
                          {{"tiny", Shape{1}}, {"four", Shape{2, 3, 12, 7}, true}},
                          {{"three", Shape{12, 3, 12}, true}}};
  const std::vector<fsdp::ShardDim> dims{
      {.pattern = "*.weight", .dim = 1}, {.pattern = "*.four", .dim = 2}, {.pattern = "*.three", .dim = 2}};
  const std::vector<How> some{{.num_ranks = 1},
                              {.num_ranks = 3, .one_unit = true},
                              {.num_ranks = 4, .unsharded = {1}},
                              {.num_ranks = 4, .per_parameter = true, .shard_dims = dims},
                              {.num_ranks = 2, .per_parameter = true, .one_unit = true, .shard_dims = dims},
                              {.num_ranks = 4, .per_parameter = true, .hybrid = true, .unsharded = {0, 2}}};
  for (const How& writer : some) save_and_read(units, writer, some);
}

// Several blocks of 4 MiB a shard, cut at other places: all ranks together read each block once, in equal parts.
TEST(Resharding, ReadsEveryBlockOnceInAll) {
  const test::Units units{{{"weight", Shape{3001, 1009}, true}}};
  const TemporaryFolder folder;
  std::string path;
  test::with_one_rank(units, [&](SavedModel& model) {
    model.fill(1);
    path = model.save(folder.path(), 1).path;
  });
  const std::int64_t shard_bytes = read_manifest(path).files[0].datasets[0].bytes;
  std::atomic<std::int64_t> bytes{0};
  run_local_ranks(3, [&](auto world) {
    auto world2 = world->duplicate("expected");
    SavedModel loaded(std::move(world), units);
    SavedModel expected(std::move(world2), units);
    expected.fill(1);
    const LoadReport report = loaded.load(path);
    EXPECT_EQ(loaded.bits(), expected.bits());
    EXPECT_LE(report.bytes, 3 * kBlockBytes);  // of 9 blocks
    bytes += report.bytes;
  });
  EXPECT_EQ(bytes, 3 * shard_bytes);
}

// A parameter cut along its last dim is as many runs as it has rows; the tables hold one row a piece, and so does what
// ranks send each other.
TEST(Resharding, TablesAndTrafficDoNotGrowWithTheRunsOfABox) {
  const test::Units units{{{"weight", Shape{20'000, 8}, true}, {"bias", Shape{8}}}};
  const How writer{.num_ranks = 4, .per_parameter = true, .shard_dims = {{.pattern = "*.weight", .dim = 1}}};
  const TemporaryFolder folder;
  run_local_ranks(writer.num_ranks, [&](auto world) {
    SavedModel saved(std::move(world), units, writer.options());
    saved.fill(7);
    saved.save(folder.path(), 1);
  });
  const std::string path = folder / "checkpoints/step-00000001";
  // 80,000 runs of 2 elements a kind; a row of 48 bytes for each of 4 pieces of the weight and 4 of the bias.
  for (const FileEntry& file : read_manifest(path).files) {
    EXPECT_EQ(io::Hdf5File::open(path + "/" + file.name).open_dataset("/pieces/begin").numel(), 3 * 2);
  }
  run_local_ranks(3, [&](auto world) {
    auto world2 = world->duplicate("expected");
    SavedModel loaded(std::move(world), units);
    SavedModel expected(std::move(world2), units);
    expected.fill(7);
    const Manifest manifest = open_checkpoint(path, loaded.comm());
    const test::CountingComm counting(loaded.comm());
    (void)load(path, manifest, {&loaded.root(), &loaded.optimizer(), 1}, counting);
    EXPECT_EQ(loaded.bits(), expected.bits());
    std::int64_t own_bytes = 0;
    for (const std::vector<std::byte>& each : loaded.bits()) own_bytes += std::ssize(each);
    EXPECT_LT(counting.bytes(), own_bytes + 8000);
  });
}

// State that a unit has not in the checkpoint is zero on another mesh too.
TEST(Resharding, StateThatWasNeverAllocatedIsZero) {
  const TemporaryFolder folder;
  std::string path;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) { path = model.save(folder.path(), 0).path; });
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.fill(6);
    EXPECT_THAT(model.load(path).notes, IsEmpty());
    for (const optim::StateShard& shard : model.optimizer().state()) {
      for (std::int64_t i = 0; i < shard.data.numel(); ++i) EXPECT_EQ(shard.data.as<float>()[i], 0.0F);
    }
  });
}

}  // namespace
}  // namespace mica::checkpoint
