// SPDX-License-Identifier: Apache-2.0
// Save and load by ranks that are processes: files of several writers, errors that travel.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/verify.hpp"
#include "mica/comm/mpi_group.hpp"

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::error_of;
using test::SavedModel;
using test::ShardedOptions;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class MpiCheckpoint : public ::testing::Test {
 protected:
  MpiCheckpoint() {
    if (world_.rank() == 0) own_folder_ = std::make_unique<test::TemporaryFolder>();
    folder_ = world_.broadcast_string(own_folder_ ? own_folder_->path() : "", 0);
  }
  ~MpiCheckpoint() override { world_.barrier(); }  // rank 0 deletes the folder

  [[nodiscard]] std::unique_ptr<ProcessGroup> group(const std::string& name) { return make_mpi_group(world_.duplicate(), *pool_, name); }
  void round_trip(const ShardedOptions& options, std::int64_t step) {
    SavedModel saved(group("saved"), test::odd_units(), options);
    saved.fill(7);
    const SaveReport report = save(folder_, saved.state(step), *comm_);
    SavedModel loaded(group("loaded"), test::odd_units(), options);
    loaded.fill(8);
    ASSERT_NE(loaded.bits(), saved.bits());
    const Manifest manifest = open_checkpoint(report.path, *comm_);
    EXPECT_EQ(manifest.run_id, "r0");
    EXPECT_THAT(load(report.path, manifest, {&loaded.root(), &loaded.optimizer(), 1}, *comm_).notes, IsEmpty());
    EXPECT_EQ(loaded.bits(), saved.bits());
    EXPECT_EQ(loaded.optimizer().num_steps(), 7);
    EXPECT_THAT(verify(report.path).damage, IsEmpty());
    const std::int64_t all_bytes = world_.all_sum(report.shard_bytes);
    if (world_.rank() == 0) {
      EXPECT_EQ(report.bytes, all_bytes + manifest.index.bytes);
    }
    EXPECT_EQ(world_.all_max(report.bytes), report.bytes);
  }

  mpi::Communicator world_ = mpi::Communicator::world();
  std::unique_ptr<HostComm> comm_ = make_mpi_comm(world_);
  std::unique_ptr<Pool> pool_ = make_cpu_pool();
  std::unique_ptr<test::TemporaryFolder> own_folder_;
  std::string folder_;
};

TEST_F(MpiCheckpoint, RoundTripIsBitExact) { round_trip({}, 500); }

TEST_F(MpiCheckpoint, RoundTripWithThreadedStreams) { round_trip({.mode = StreamMode::threaded}, 500); }

TEST_F(MpiCheckpoint, RoundTripWithReplicas) {
  ShardedOptions options{.shard_size = world_.num_ranks() % 2 == 0 ? 2 : 1};
  options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
  round_trip(options, 501);
  EXPECT_EQ(static_cast<int>(read_manifest(folder_ + "/checkpoints/step-00000501").files.size()), options.shard_size);
}

TEST_F(MpiCheckpoint, TheLastRanksErrorIsEverybodys) {
  SavedModel model(group("model"), test::small_units());
  model.fill(1);
  (void)save(folder_, model.state(1), *comm_);
  const int last = world_.num_ranks() - 1;
  const SaveOptions options{.at_point = [&](std::string_view at) {
    if (at == "shard written" && world_.rank() == last) throw IoError("/x: no space left");
  }};
  const std::string text = error_of<IoError>([&] { (void)save(folder_, model.state(2), *comm_, options); });
  EXPECT_EQ(text, last == 0 ? "/x: no space left" : fmt::format("rank {}: /x: no space left", last));
  world_.barrier();
  EXPECT_EQ(newest_complete(folder_)->step, 1);
  EXPECT_FALSE(fs::exists(folder_ + "/checkpoints/step-00000002.r0.tmp"));
  // A file that is damaged for one rank only stops all.
  const std::string path = newest_complete(folder_)->path;
  const std::string file = read_manifest(path).files.back().name;
  world_.barrier();
  if (world_.rank() == 0) fs::resize_file(path + "/" + file, 100);
  world_.barrier();
  const Manifest manifest = open_checkpoint(path, *comm_);
  EXPECT_THAT(error_of<DamagedCheckpointError>([&] {
                (void)load(path, manifest, {&model.root(), &model.optimizer()}, *comm_);
              }),
              HasSubstr(file));
}

TEST_F(MpiCheckpoint, HostCommMovesTextOfAnyLength) {
  auto model_world = group("texts");
  auto stream = make_cpu_stream("texts", StreamMode::inlined);
  const auto group_comm = make_group_comm(*model_world, *stream);
  for (const HostComm* comm : {comm_.get(), group_comm.get()}) {
    const auto text_of = [&](int rank) { return std::string(static_cast<std::size_t>(rank * 70000), static_cast<char>('a' + rank)); };
    const std::vector<std::string> all = comm->gather_strings(text_of(world_.rank()));
    ASSERT_EQ(static_cast<int>(all.size()), world_.num_ranks());
    for (int r = 0; r < world_.num_ranks(); ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], text_of(r));
    EXPECT_EQ(comm->broadcast_string(text_of(world_.rank()), world_.num_ranks() - 1), text_of(world_.num_ranks() - 1));
    EXPECT_EQ(comm->broadcast_string("", 0), "");
    // Of any length from each to each, none among them.
    const auto text_between = [](int from, int to) {
      return std::string(static_cast<std::size_t>((from * 3 + to) % 4 * 50001), static_cast<char>('a' + from));
    };
    std::vector<std::string> to_each;
    for (int r = 0; r < world_.num_ranks(); ++r) to_each.push_back(text_between(world_.rank(), r));
    const std::vector<std::string> from_each = comm->exchange_strings(to_each);
    ASSERT_EQ(static_cast<int>(from_each.size()), world_.num_ranks());
    for (int r = 0; r < world_.num_ranks(); ++r) EXPECT_EQ(from_each[static_cast<std::size_t>(r)], text_between(r, world_.rank()));
    const std::vector<std::string> gathered = comm->to_first_rank([&] { return text_of(world_.rank()); });
    EXPECT_EQ(static_cast<int>(gathered.size()), world_.rank() == 0 ? world_.num_ranks() : 0);
    if (world_.rank() == 0) {
      EXPECT_EQ(gathered.back(), text_of(world_.num_ranks() - 1));
    }
  }
}

}  // namespace
}  // namespace mica::checkpoint
