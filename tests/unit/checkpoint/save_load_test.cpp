#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/verify.hpp"
#include "support/temporary_folder.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::error_of;
using test::SavedModel;
using test::ShardedOptions;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
namespace fs = std::filesystem;

struct MeshCase {
  int num_ranks;
  int shard_size;
  std::vector<int> unsharded;  // units
};

class RoundTrip : public testing::TestWithParam<MeshCase> {};

TEST_P(RoundTrip, IsBitExactOnEveryRank) {
  const MeshCase& mesh = GetParam();
  const TemporaryFolder folder;
  run_local_ranks(mesh.num_ranks, [&](auto world) {
    ShardedOptions options{.shard_size = mesh.shard_size, .unsharded = mesh.unsharded};
    if (mesh.shard_size != mesh.num_ranks) options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
    auto world2 = world->duplicate("second");
    SavedModel saved(std::move(world), test::odd_units(), options);
    saved.fill(7);
    const SaveReport report = saved.save(folder.path(), 500);
    EXPECT_EQ(report.path, folder / "checkpoints/step-00000500");
    EXPECT_THAT(report.notes, IsEmpty());
    EXPECT_EQ(report.shard_bytes > 0, saved.weights().device_mesh().mesh().replica_rank() == 0);

    SavedModel loaded(std::move(world2), test::odd_units(), options);
    loaded.fill(8);
    ASSERT_NE(loaded.bits(), saved.bits());
    const auto newest = newest_complete(folder.path());
    ASSERT_TRUE(newest.has_value());
    EXPECT_EQ(newest->step, 500);
    EXPECT_THAT(loaded.load(newest->path).notes, IsEmpty());
    EXPECT_EQ(loaded.bits(), saved.bits());
    EXPECT_EQ(loaded.optimizer().num_steps(), 7);
  });
  const Manifest manifest = read_manifest(folder / "checkpoints/step-00000500");
  EXPECT_EQ(manifest.world_size, mesh.num_ranks);
  EXPECT_EQ(static_cast<int>(manifest.files.size()), mesh.shard_size);
  EXPECT_EQ(manifest.run_id, "r0");
  EXPECT_EQ(manifest.tokens, 500000);
  EXPECT_EQ(manifest.seed, 18446744073709551615ULL);
  EXPECT_EQ(manifest.config, "[run]\nname=test\n");
  // Nothing else is in the folder, and nothing is left of the writing.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "checkpoints"), fs::directory_iterator()), 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "checkpoints/step-00000500"), fs::directory_iterator()),
            mesh.shard_size + 1);
  EXPECT_THAT(verify(folder / "checkpoints/step-00000500").damage, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Meshes, RoundTrip,
                         testing::Values(MeshCase{1, 1, {}}, MeshCase{2, 2, {}}, MeshCase{3, 3, {}}, MeshCase{4, 4, {}},
                                         MeshCase{4, 2, {}}, MeshCase{3, 1, {}}, MeshCase{4, 4, {1}},
                                         MeshCase{4, 2, {0, 2}}),
                         [](const auto& info) {
                           return fmt::format("ranks{}_shard{}_unsharded{}", info.param.num_ranks, info.param.shard_size,
                                              info.param.unsharded.size());
                         });

}  // namespace
}  // namespace mica::checkpoint
