// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/verify.hpp"
#include "mica/io/hdf5.hpp"

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::error_of;
using test::SavedModel;
using test::ShardedOptions;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

struct SaveLoadCase {
  int num_ranks;
  int shard_size;
  std::vector<int> unsharded;  // units
};

class RoundTrip : public ::testing::TestWithParam<SaveLoadCase> {};

TEST_P(RoundTrip, IsBitExactOnEveryRank) {
  const SaveLoadCase& mesh = GetParam();
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
    // Of the replicas of a shard one writes its file: another one for the next shard.
    const Mesh& grid = saved.weights().device_mesh().mesh();
    EXPECT_EQ(report.shard_bytes > 0, grid.replica_rank() == grid.shard_rank() % grid.replicas());

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
            mesh.shard_size + 2);  // shards, model.h5, manifest
  EXPECT_THAT(verify(folder / "checkpoints/step-00000500").damage, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Meshes, RoundTrip,
                         ::testing::Values(SaveLoadCase{1, 1, {}}, SaveLoadCase{2, 2, {}}, SaveLoadCase{3, 3, {}}, SaveLoadCase{4, 4, {}},
                                           SaveLoadCase{4, 2, {}}, SaveLoadCase{6, 3, {}}, SaveLoadCase{6, 2, {}}, SaveLoadCase{3, 1, {}},
                                           SaveLoadCase{4, 4, {1}}, SaveLoadCase{4, 2, {0, 2}}),
                         [](const auto& info) {
                           return fmt::format("ranks{}_shard{}_unsharded{}", info.param.num_ranks, info.param.shard_size,
                                              info.param.unsharded.size());
                         });

// Several blocks of 4 MiB on a rank, and a shard that ends in the middle of one.
TEST(SaveLoad, ShardsOfManyBlocks) {
  const TemporaryFolder folder;
  test::with_one_rank({{{"weight", Shape{1500, 1001}, true}}}, [&](SavedModel& model) {
    model.fill(1);
    const auto before = model.bits();
    const SaveReport report = model.save(folder.path(), 1);
    EXPECT_EQ(read_manifest(report.path).files[0].datasets[0].num_blocks(), 2);
    EXPECT_EQ(report.bytes, static_cast<std::int64_t>(fs::file_size(report.path + "/shard-r0-00000001-00000.h5") +
                                                      fs::file_size(report.path + "/model.h5")));
    model.fill(2);
    const LoadReport loaded = model.load(report.path);
    EXPECT_EQ(loaded.bytes, 3 * 1500 * 1001 * 4);
    EXPECT_EQ(model.bits(), before);
  });
}

// What other programs see: the whole shard of each unit, and where the elements of each parameter lie.
TEST(SaveLoad, TheShardFileIsPlainHdf5WithATableOfPieces) {
  const TemporaryFolder folder;
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.fill(5);
    model.save(folder.path(), 2);
  });
  // Unit u0: weight 35, gap to 64, bias 5, padding to 70: 35 a rank. Unit u1: 3 and padding, 2 a rank.
  const auto file = io::Hdf5File::open(folder / "checkpoints/step-00000002/shard-r0-00000002-00001.h5");
  EXPECT_EQ(file.string_attribute("/", "run_id"), "r0");
  EXPECT_EQ(file.int_attribute("/", "step"), 2);
  EXPECT_EQ(file.int_attribute("/", "shard_rank"), 1);
  EXPECT_THAT(file.list("/units/0"), ::testing::ElementsAre("exp_avg", "exp_avg_sq", "master"));
  EXPECT_THAT(file.read_strings("/unit_table/name"), ::testing::ElementsAre("u0", "u1"));
  EXPECT_EQ(file.open_dataset("/units/0/master").dims(), std::vector<std::int64_t>{35});
  EXPECT_THAT(file.read_strings("/pieces/parameter"),
              ::testing::ElementsAre("u0.bias", "u0.bias", "u0.bias", "u1.last", "u1.last", "u1.last"));
  EXPECT_THAT(file.read_strings("/pieces/kind"),
              ::testing::ElementsAre("master", "exp_avg", "exp_avg_sq", "master", "exp_avg", "exp_avg_sq"));
  EXPECT_EQ(file.read_strings("/pieces/dataset")[4], "/units/1/exp_avg");
  std::vector<std::int64_t> shapes(30), begins(6), offsets(6);
  file.open_dataset("/pieces/shape").read(shapes.data(), 240);
  file.open_dataset("/pieces/begin").read(begins.data(), 48);
  file.open_dataset("/pieces/offset").read(offsets.data(), 48);
  EXPECT_THAT(std::vector(shapes.begin(), shapes.begin() + 5), ::testing::ElementsAre(5, 0, 0, 0, 0));
  EXPECT_THAT(begins, ::testing::ElementsAre(0, 0, 0, 2, 2, 2));
  EXPECT_THAT(offsets, ::testing::ElementsAre(29, 29, 29, 0, 0, 0));
  std::vector<float> shard(35);
  file.open_dataset("/units/0/exp_avg").read(shard.data(), 140);
  EXPECT_EQ(shard[28], 0.0F);
  EXPECT_EQ(shard[29], test::element_value("u0.bias", "exp_avg", 0, 5));
  EXPECT_EQ(shard[33], test::element_value("u0.bias", "exp_avg", 4, 5));
}

// The optimizer's last writes may still be on their way when save() is called.
TEST(SaveLoad, WaitsForTheComputeStream) {
  const TemporaryFolder folder;
  run_local_ranks(1, [&](auto world) {
    SavedModel model(std::move(world), test::small_units(), {.mode = StreamMode::threaded});
    model.fill(5);
    const TensorView master = model.root().write_master(model.root().pieces().front());
    model.weights().device_mesh().compute().submit("late", {writes(master)}, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      *master.as<float>() = -1.0F;
    });
    const std::string path = model.save(folder.path(), 1).path;
    model.fill(6);
    (void)model.load(path);
    EXPECT_EQ(*master.as<float>(), -1.0F);
  });
}

// Steps that single parameters have taken are part of the optimizer's state, on any mesh.
TEST(SaveLoad, StepsOfSingleParameters) {
  const TemporaryFolder folder;
  const std::map<std::string, std::int64_t> steps{{"u0.bias", 2}, {"u1.last", 0}};
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.fill(5);
    model.optimizer().set_parameter_steps(steps);
    model.save(folder.path(), 1);
  });
  for (const int num_ranks : {1, 2, 3}) {
    run_local_ranks(num_ranks, [&](auto world) {
      SavedModel model(std::move(world), test::small_units());
      model.fill(6);
      model.optimizer().set_parameter_steps({{"u0.weight", 4}});
      EXPECT_THAT(model.load(folder / "checkpoints/step-00000001").notes, IsEmpty());
      EXPECT_EQ(model.optimizer().num_steps(), 5);
      EXPECT_EQ(model.optimizer().parameter_steps(), steps) << num_ranks << " ranks";
    });
  }
}

TEST(SaveLoad, ParametersAlone) {
  const TemporaryFolder folder;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    model.fill(5);
    const auto expected = model.bits();
    SaveState state = model.state(1);
    state.optimizer = nullptr;
    const std::string path = save(folder.path(), state, model.comm()).path;
    EXPECT_EQ(read_manifest(path).optimizer, "");
    model.fill(6);
    const Manifest manifest = open_checkpoint(path, model.comm());
    EXPECT_THAT(load(path, manifest, {&model.root()}, model.comm()).notes, IsEmpty());
    const auto parameters_only = model.bits();
    EXPECT_EQ(parameters_only[0], expected[0]);
    EXPECT_NE(parameters_only[2], expected[2]);  // the optimizer was not touched
    // With an optimizer, it starts anew and says so.
    EXPECT_THAT(model.load(path).notes, ::testing::ElementsAre(HasSubstr("adamw starts from zero")));
    EXPECT_EQ(model.optimizer().num_steps(), 0);
    EXPECT_EQ(model.bits()[2], std::vector<std::byte>(69 * 4));
  });
}

TEST(SaveLoad, StateOfAnotherOptimizerIsNotTakenOver) {
  const TemporaryFolder folder;
  std::string path;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    model.fill(5);
    path = model.save(folder.path(), 1).path;
  });
  run_local_ranks(1, [&](auto world) {
    SavedModel model(std::move(world), test::small_units(), {}, /*with_sgd=*/true);
    model.fill(6);
    EXPECT_THAT(model.load(path).notes, ::testing::ElementsAre(AllOf(HasSubstr("adamw"), HasSubstr("sgd starts from zero"))));
    EXPECT_EQ(model.optimizer().num_steps(), 0);
    EXPECT_EQ(model.bits()[2], std::vector<std::byte>(69 * 4));
  });
}

// State is allocated at a unit's first step: a checkpoint from before the first step has none, and loading it gives zeros.
TEST(SaveLoad, StateThatWasNeverAllocatedIsZero) {
  const TemporaryFolder folder;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    const std::string path = model.save(folder.path(), 0).path;
    EXPECT_EQ(read_manifest(path).files[0].datasets.size(), 2U);
    const auto masters = model.bits();
    model.fill(6);
    EXPECT_THAT(model.load(path).notes, IsEmpty());
    EXPECT_EQ(model.bits()[0], masters[0]);
    EXPECT_EQ(model.bits()[2], std::vector<std::byte>(69 * 4));
  });
}

void freeze_last_unit(SavedModel& model) {
  for (const fsdp::UnitParameter& p : model.root().units().back()->storage()->parameters()) p.parameter->requires_grad = false;
}

// A unit was frozen when the checkpoint was written: its moments are gone, so its count of steps must not stay.
TEST(SaveLoad, WithoutTheirStateParametersCountFromZero) {
  const TemporaryFolder folder;
  for (const int num_ranks : {1, 2}) {
    const std::string run = folder / fmt::format("{}", num_ranks);
    run_local_ranks(num_ranks, [&](auto world) {
      SavedModel model(world->duplicate("frozen"), test::small_units());
      freeze_last_unit(model);
      model.fill(5);
      const std::string path = model.save(run, 1).path;
      SavedModel thawed(std::move(world), test::small_units());
      thawed.fill(6);
      EXPECT_THAT(thawed.load(path).notes, ElementsAre(HasSubstr("no optimizer state of 1 parameter, u1.last: frozen or ignored")));
      EXPECT_EQ(thawed.optimizer().steps_of("u0.weight"), 5);
      EXPECT_EQ(thawed.optimizer().steps_of("u1.last"), 0);
    });
  }
}

// The other way round: there is no place for the state of what is frozen here, and a moment that begins at zero later must not count the
// steps that it has not seen.
TEST(SaveLoad, WhatIsFrozenWhenItIsLoadedCountsFromZero) {
  const TemporaryFolder folder;
  for (const int num_ranks : {1, 2}) {
    const std::string run = folder / fmt::format("{}", num_ranks);
    run_local_ranks(num_ranks, [&](auto world) {
      SavedModel model(world->duplicate("trained"), test::small_units());
      model.fill(5);
      const std::string path = model.save(run, 1).path;
      SavedModel frozen(std::move(world), test::small_units());
      freeze_last_unit(frozen);
      frozen.fill(6);
      EXPECT_THAT(frozen.load(path).notes,
                  ElementsAre(HasSubstr("the optimizer state of 1 parameter is not loaded, u1.last: frozen here")));
      EXPECT_EQ(frozen.optimizer().steps_of("u0.weight"), 5);
      EXPECT_EQ(frozen.optimizer().steps_of("u1.last"), 0);
      EXPECT_THAT(frozen.load(frozen.save(run, 2).path).notes, IsEmpty()) << "told once";
    });
  }
}

// A manifest is JSON, which has no such numbers; nothing is written then.
TEST(SaveLoad, ScalarsAreFinite) {
  const TemporaryFolder folder;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    model.fill(1);
    SaveState state = model.state(1);
    state.scalars = {{"best_loss", std::numeric_limits<double>::infinity()}};
    EXPECT_THAT(error_of<Error>([&] { (void)save(folder.path(), state, model.comm(), {}); }), HasSubstr("the scalar best_loss is inf"));
    EXPECT_TRUE(fs::is_empty(folder.path()));
  });
}

// Groups may name fewer parameters than those of the saved run: state that has no place is left in the file.
TEST(SaveLoad, StateOfUnitsThatAreInNoGroupIsNotRead) {
  const TemporaryFolder folder;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    model.fill(5);
    const std::string path = model.save(folder.path(), 1).path;
    const auto last_only = optim::make_adamw(model.root(), {}, {{.parameters = {"u1.last"}}});
    EXPECT_THAT(load(path, open_checkpoint(path, model.comm()), {&model.root(), last_only.get(), 1}, model.comm()).notes, IsEmpty());
    ASSERT_EQ(last_only->state().size(), 2U);
    for (const optim::StateShard& shard : last_only->state()) {
      for (int i = 0; i < 3; ++i) EXPECT_EQ(shard.data.as<float>()[i], test::element_value("u1.last", shard.kind, i, 5)) << shard.kind;
    }
  });
}

TEST(SaveLoad, AnotherModelIsRefusedByName) {
  const TemporaryFolder folder;
  std::string path;
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.fill(1);
    const std::string saved = model.save(folder.path(), 1).path;
    if (model.comm().rank() == 0) path = saved;
  });
  const auto error = [&](int num_ranks, const test::Units& units, const ShardedOptions& options = {}) {
    std::string text;
    run_local_ranks(num_ranks, [&](auto world) {
      SavedModel model(std::move(world), units, options);
      const std::string mine = error_of<CheckpointError>([&] { (void)model.load(path); });
      if (model.comm().rank() == 0) text = mine;
    });
    return text;
  };
  EXPECT_THAT(error(2, {{{"weight", Shape{7, 5}, true}, {"bias", Shape{5}}}, {{"last", Shape{3}}}}),
              AllOf(HasSubstr("another model"), HasSubstr("u0.weight"), HasSubstr("[5, 7] there and [7, 5] here")));
  EXPECT_THAT(error(2, {{{"weight", Shape{5, 7}, true}, {"bias", Shape{5}}}, {{"last", Shape{3}}}, {{"more", Shape{3}}}}),
              HasSubstr("it has no parameter u2.more (shape [3] here)"));
  EXPECT_THAT(error(2, {{{"weight", Shape{5, 7}, true}, {"bias", Shape{5}}}}),
              HasSubstr("this one has no parameter u1.last (shape [3] there)"));
}

TEST(SaveLoad, AStepIsReplacedWhenTheRunWentBack) {
  const TemporaryFolder folder;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    model.fill(1);
    model.save(folder.path(), 5);
    model.fill(2);
    const auto second = model.bits();
    EXPECT_THAT(model.save(folder.path(), 5).notes, IsEmpty());
    model.fill(3);
    (void)model.load(folder / "checkpoints/step-00000005");
    EXPECT_EQ(model.bits(), second);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder / "checkpoints"), fs::directory_iterator()), 1);
  });
}

TEST(SaveLoad, KeepDeletesOlderOnesOnly) {
  const TemporaryFolder folder;
  const auto steps = [&] {
    std::vector<std::int64_t> found;
    for (const CheckpointPath& each : list_checkpoints(folder / "checkpoints")) found.push_back(each.step);
    return found;
  };
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    for (const int step : {10, 20, 30}) model.save(folder.path(), step);
    model.save(folder.path(), 40, {.keep = 3});
    (void)model.comm().gather_strings("");
    EXPECT_THAT(steps(), ::testing::ElementsAre(20, 30, 40));
    (void)model.comm().gather_strings("");
    model.save(folder.path(), 25, {.keep = 1});  // went back: 30 and 40 are not this run's to delete
    (void)model.comm().gather_strings("");
    EXPECT_THAT(steps(), ::testing::ElementsAre(25, 30, 40));
    (void)model.comm().gather_strings("");
    model.save(folder.path(), 50, {.keep = 1});
    (void)model.comm().gather_strings("");
    EXPECT_THAT(steps(), ::testing::ElementsAre(50));
  });
}

TEST(SaveLoad, WhatIsHalfWrittenIsInvisibleAndIsCleanedUp) {
  const TemporaryFolder folder;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    EXPECT_FALSE(newest_complete(folder.path()).has_value());
    model.save(folder.path(), 1);
    const std::string checkpoints = folder / "checkpoints";
    for (const char* name : {"step-00000002.tmp", "step-00000002.1a2b.tmp", "step-00000003.old.tmp", "step-00000001.replaced", "step-2",
                             "step-00000004x", "other"}) {
      fs::create_directory(checkpoints + "/" + name);
    }
    fs::copy(checkpoints + "/step-00000001", checkpoints + "/step-00000005.tmp");
    std::ofstream(checkpoints + "/step-00000006") << "a file";
    EXPECT_EQ(newest_complete(folder.path())->step, 1);
    model.save(folder.path(), 2);
    EXPECT_EQ(newest_complete(folder.path())->step, 2);
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(checkpoints)) names.push_back(entry.path().filename());
    EXPECT_THAT(names,
                ::testing::UnorderedElementsAre("step-00000001", "step-00000002", "step-2", "step-00000004x", "other", "step-00000006"));
  });
}

/// The same ranks in another order, but for rank 0: a mesh goes node by node, mpirun's ranks may not.
class ReversedComm : public HostComm {
 public:
  explicit ReversedComm(const HostComm& inner) : inner_(inner) {}
  [[nodiscard]] int rank() const override { return other(inner_.rank()); }
  [[nodiscard]] int num_ranks() const override { return inner_.num_ranks(); }
  [[nodiscard]] std::vector<std::string> gather_strings(const std::string& mine) const override {
    return reversed(inner_.gather_strings(mine));
  }
  [[nodiscard]] std::string broadcast_string(const std::string& mine, int root) const override {
    return inner_.broadcast_string(mine, other(root));
  }
  [[nodiscard]] std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const override {
    return reversed(inner_.exchange_strings(reversed(to_each)));
  }

 private:
  [[nodiscard]] int other(int rank) const { return rank == 0 ? 0 : num_ranks() - rank; }
  [[nodiscard]] std::vector<std::string> reversed(std::vector<std::string> texts) const {
    std::reverse(texts.begin() + 1, texts.end());
    return texts;
  }
  const HostComm& inner_;
};

TEST(SaveLoad, RanksMayHaveAnotherOrderThanTheMesh) {
  const TemporaryFolder folder;
  run_local_ranks(4, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.fill(1);
    const auto saved = model.bits();
    const std::string path = save(folder.path(), model.state(1), ReversedComm(model.comm())).path;
    model.fill(2);
    (void)model.load(path);
    EXPECT_EQ(model.bits(), saved);
    (void)model.comm().gather_strings("");
  });
}

TEST(SaveLoad, LaterCheckpointsAreSetAside) {
  const TemporaryFolder folder;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    for (const int step : {10, 20, 30}) model.save(folder.path(), step);
    const std::string aside = make_set_aside_folder(folder.path());
    EXPECT_EQ(aside, folder / "checkpoints/set-aside-1");
    set_aside_after(folder.path(), 10, aside);
    EXPECT_EQ(newest_complete(folder.path())->step, 10);
    EXPECT_EQ(list_checkpoints(aside).size(), 2U);
    EXPECT_THAT(verify(aside + "/step-00000030").damage, IsEmpty());
    EXPECT_EQ(make_set_aside_folder(folder.path()), folder / "checkpoints/set-aside-2");
    EXPECT_THAT(list_set_aside(folder / "checkpoints"), ::testing::ElementsAre(aside, folder / "checkpoints/set-aside-2"));
    model.save(folder.path(), 40, {.keep = 1});
    EXPECT_EQ(list_checkpoints(aside).size(), 2U) << "keep deletes nothing there";
  });
}

TEST(SaveLoad, RanksThatDisagreeOnTheStepStop) {
  const TemporaryFolder folder;
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    EXPECT_THAT(error_of<DesyncError>([&] { model.save(folder.path(), 5 + model.comm().rank()); }),
                HasSubstr("rank 1 saves step 6, but rank 0 step 5"));
  });
  EXPECT_FALSE(fs::exists(folder / "checkpoints"));
}

TEST(SaveLoad, AFolderThatCannotBeMadeIsTheUsersToChange) {
  const TemporaryFolder folder;
  std::ofstream(folder / "run") << "a file";
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    EXPECT_THAT(error_of<ConfigError>([&] { model.save(folder / "run", 1); }),
                AllOf(HasSubstr("rank 0: "), HasSubstr("run/checkpoints"), HasSubstr("run.dir")));
  });
}

}  // namespace
}  // namespace mica::checkpoint
