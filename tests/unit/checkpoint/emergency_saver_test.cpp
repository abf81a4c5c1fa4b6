// SPDX-License-Identifier: Apache-2.0
// What ranks that are left can save, without a collective: some ranks here never call anything again, as the dead.

#include "mica/checkpoint/emergency_saver.hpp"

#include <barrier>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <utility>

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
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

constexpr int kRanks = 4;

/// Two replicas of two shards, with a saver for each rank.
struct TrainedRank {
  TrainedRank(
      std::unique_ptr<ProcessGroup> world, const std::string& run, std::function<void()> check_owner = [] {})
      : model(std::move(world), test::odd_units(), {.fsdp = {.strategy = fsdp::Strategy::hybrid_shard}, .shard_size = 2}) {
    model.fill(4);
    SaveState state = model.state(4);
    state.run_id = "r0";
    saver.emplace(run, state, std::move(check_owner));
  }
  /// A step, as far as a saver sees it.
  void update(std::int64_t step) {
    saver->before_update();
    model.fill(static_cast<int>(step));
    saver->after_update({.run_id = "r0", .step = step, .tokens = step * 1000, .sequences = step * 8, .optimizer_steps = step});
  }

  SavedModel model;
  std::optional<EmergencySaver> saver;
};

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

/// Saves on the ranks that are left, which have done these steps, and loads the result on all.
void expect_saved(const std::map<int, std::int64_t>& steps, std::int64_t saved_step) {
  const TemporaryFolder folder;
  std::barrier all(kRanks);
  run_local_ranks(kRanks, [&](auto world) {
    const int rank = world->rank();
    TrainedRank trained(std::move(world), folder.path());
    const auto left = steps.find(rank);
    trained.update(5);
    if (left != steps.end() && left->second == 6) trained.update(6);
    all.arrive_and_wait();
    if (left != steps.end()) {
      std::thread late;
      if (left->second < saved_step) {
        // Its own update comes while others wait for it.
        late = std::thread([&] {
          while (!fs::exists(fmt::format("{}/checkpoints/step-{:08}.r0.claims.tmp", folder.path(), saved_step))) std::this_thread::yield();
          trained.update(saved_step);
        });
      }
      const SaveReport report = trained.saver->save();
      if (late.joinable()) late.join();
      EXPECT_EQ(report.step, saved_step);
      EXPECT_EQ(report.path, fmt::format("{}/checkpoints/step-{:08}", folder.path(), saved_step));
    }
    all.arrive_and_wait();
    trained.model.fill(static_cast<int>(saved_step));
    const auto expected = trained.model.bits();
    trained.model.fill(1);
    (void)trained.model.load(fmt::format("{}/checkpoints/step-{:08}", folder.path(), saved_step));
    EXPECT_EQ(trained.model.bits(), expected);
    EXPECT_EQ(trained.model.optimizer().num_steps(), saved_step);
  });
  const std::string path = fmt::format("{}/checkpoints/step-{:08}", folder.path(), saved_step);
  EXPECT_THAT(verify(path).damage, IsEmpty());
  const Manifest manifest = read_manifest(path);
  EXPECT_EQ(manifest.tokens, saved_step * 1000);
  EXPECT_EQ(manifest.sequences, saved_step * 8);
  EXPECT_EQ(manifest.seed, 18446744073709551615ULL);
  EXPECT_FALSE(manifest.retention) << "it has left all others there, by no rule";
  EXPECT_TRUE(newest_complete(folder.path()).has_value());
}

TEST(EmergencySaver, OneReplicaIsEnough) {
  expect_saved({{0, 5}, {1, 5}}, 5);
  expect_saved({{2, 5}, {3, 5}}, 5);
}

TEST(EmergencySaver, ShardsOfDifferentReplicasAreEnough) {
  expect_saved({{0, 5}, {3, 5}}, 5);
  expect_saved({{1, 5}, {2, 5}}, 5);
}

TEST(EmergencySaver, OfSeveralReplicasEachShardIsWrittenOnce) {
  expect_saved({{0, 5}, {1, 5}, {2, 5}}, 5);
  expect_saved({{0, 5}, {1, 5}, {2, 5}, {3, 5}}, 5);
}

TEST(EmergencySaver, ARankThatIsAnUpdateBehindCatchesUp) {
  expect_saved({{0, 5}, {1, 6}}, 6);
  expect_saved({{0, 6}, {1, 5}}, 6);
}

TEST(EmergencySaver, NothingIsSavedWithoutAllShards) {
  const TemporaryFolder folder;
  run_local_ranks(kRanks, [&](auto world) {
    const int rank = world->rank();
    TrainedRank trained(std::move(world), folder.path());
    trained.update(5);
    if (rank % 2 != 0) return;  // both replicas of shard 1 are lost
    EXPECT_THAT(error_of<Error>([&] { (void)trained.saver->save(); }), HasSubstr("of 2 shards of step 5 the ranks that are left have 1"));
  });
  EXPECT_FALSE(newest_complete(folder.path()).has_value());
}

// It hears of the loss only after the others' patience. Then all try once more (comm/job_end).
TEST(EmergencySaver, AClaimThatWasGivenUpHoldsUpNobodyAndASecondTrySucceeds) {
  const TemporaryFolder folder;
  std::barrier all(kRanks);
  run_local_ranks(kRanks, [&](auto world) {
    const int rank = world->rank();
    TrainedRank trained(std::move(world), folder.path());
    trained.update(5);
    const std::string expected = "of 2 shards of step 5 the ranks that are left have 1";
    const auto fails = [&] { EXPECT_THAT(error_of<Error>([&] { (void)trained.saver->save(); }), HasSubstr(expected)); };
    if (rank == 0) fails();
    all.arrive_and_wait();
    if (rank == 1) fails();
    all.arrive_and_wait();
    if (rank > 1) return;
    EXPECT_EQ(trained.saver->save().step, 5);
  });
  EXPECT_TRUE(newest_complete(folder.path()).has_value());
}

// A rank that died inside its update is of no step; one that is only slow is waited for.
TEST(EmergencySaver, AnUpdateIsNotSavedInPart) {
  const TemporaryFolder folder;
  run_local_ranks(2, [&](auto world) {
    TrainedRank trained(std::move(world), folder.path());
    trained.update(5);
    trained.saver->before_update();
    trained.model.fill(6);
    std::thread rest([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      trained.saver->after_update({.run_id = "r0", .step = 6, .optimizer_steps = 6});
    });
    EXPECT_EQ(trained.saver->save().step, 6);
    rest.join();
    EXPECT_EQ(trained.saver->save().path, folder / "checkpoints/step-00000006") << "a second call finds it done";
    trained.saver->before_update();
    EXPECT_THAT(error_of<Error>([&] { (void)trained.saver->save(); }), HasSubstr("this rank's update of step 7 does not end"));
  });
  EXPECT_EQ(names_in(folder / "checkpoints").size(), 1u) << "nothing of it stays";
}

// A wrong alarm: the rank's own thread goes on while another thread of it saves.
TEST(EmergencySaver, AnUpdateWaitsWhileItsRankSaves) {
  const TemporaryFolder folder;
  const std::string claims = folder / "checkpoints/step-00000005.r0.claims.tmp";
  const std::string saved = folder / "checkpoints/step-00000005";
  // The claims are gone once the checkpoint is there, which a thread that gets no core may see first.
  const auto wait_for_claim = [&] {
    while (!fs::exists(claims + "/claim-00001") && !fs::exists(saved)) std::this_thread::yield();
  };
  std::barrier all(kRanks);
  run_local_ranks(kRanks, [&](auto world) {
    const int rank = world->rank();
    TrainedRank trained(std::move(world), folder.path());
    trained.update(5);
    all.arrive_and_wait();
    if (rank == 1) {
      std::thread saving([&] { EXPECT_EQ(trained.saver->save().step, 5); });
      wait_for_claim();
      trained.update(6);  // held up until the part is written, which would be of step 6 otherwise
      saving.join();
    }
    if (rank == 0) {
      wait_for_claim();
      EXPECT_EQ(trained.saver->save().step, 5);
    }
    all.arrive_and_wait();
    trained.model.fill(5);
    const auto expected = trained.model.bits();
    (void)trained.model.load(saved);
    EXPECT_EQ(trained.model.bits(), expected);
  });
}

// The others come later than this rank has patience, and it tries again.
TEST(EmergencySaver, ASecondAttemptHasItsOwnClaims) {
  const TemporaryFolder folder;
  std::barrier all(2);
  run_local_ranks(kRanks, [&](auto world) {
    const int rank = world->rank();
    TrainedRank trained(std::move(world), folder.path());
    trained.update(5);
    if (rank > 1) return;
    if (rank == 0) {
      EXPECT_THAT(error_of<Error>([&] { (void)trained.saver->save(); }), HasSubstr("have 1"));
    }
    all.arrive_and_wait();
    EXPECT_EQ(trained.saver->save().step, 5);
  });
  EXPECT_THAT(verify(folder / "checkpoints/step-00000005").damage, IsEmpty());
}

// Nobody waits then for its part of the earlier step.
TEST(EmergencySaver, ARankThatGoesOnTakesItsClaimBack) {
  const TemporaryFolder folder;
  std::barrier all(kRanks);
  run_local_ranks(kRanks, [&](auto world) {
    const int rank = world->rank();
    TrainedRank trained(std::move(world), folder.path());
    trained.update(5);
    const std::string claim = folder / "checkpoints/step-00000005.r0.claims.tmp/claim-00000";
    if (rank == 0) {
      fs::create_directories(folder / "checkpoints/step-00000006.r0.claims.tmp");
      std::thread late([&] {
        while (!fs::exists(claim)) std::this_thread::yield();
        trained.update(6);
      });
      EXPECT_THAT(error_of<Error>([&] { (void)trained.saver->save(); }), HasSubstr("of 2 shards of step 6 the ranks that are left have 1"));
      late.join();
      EXPECT_FALSE(fs::exists(claim));
    }
    all.arrive_and_wait();
  });
}

// A slow rank: it waits for claims, and when it looks again, the others have saved and deleted them.
TEST(EmergencySaver, ACheckpointThatOthersCompletedEndsTheWait) {
  const TemporaryFolder folder;
  const std::string claims = folder / "checkpoints/step-00000005.r0.claims.tmp";
  const std::string saved = folder / "checkpoints/step-00000005";
  run_local_ranks(kRanks, [&](auto world) {
    const int rank = world->rank();
    TrainedRank trained(std::move(world), folder.path());
    trained.update(5);
    if (rank != 0) return;
    const std::jthread others([&] {  // also between the making of the folder and of the claim in it
      while (!fs::exists(claims)) std::this_thread::yield();
      fs::create_directory(saved);
      fs::remove_all(claims);
    });
    EXPECT_EQ(trained.saver->save().path, saved);
  });
}

TEST(EmergencySaver, AFolderThatAnotherJobHasTakenGetsNoCheckpoint) {
  const TemporaryFolder folder;
  run_local_ranks(1, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.fill(4);
    EmergencySaver saver(folder.path(), model.state(4), [] { throw Error("another job"); });
    EXPECT_THAT(error_of<Error>([&] { (void)saver.save(); }), HasSubstr("another job"));
  });
  EXPECT_FALSE(newest_complete(folder.path()).has_value());
}

// The other ranks waited ten minutes for its files.
TEST(EmergencySaver, ARankThatCannotWriteTellsTheOthers) {
  const TemporaryFolder folder;
  std::barrier all(kRanks);
  run_local_ranks(kRanks, [&](auto world) {
    TrainedRank trained(std::move(world), folder.path(), [] { throw Error("the folder is another job's"); });
    trained.update(5);
    all.arrive_and_wait();
    EXPECT_EQ(error_of<Error>([&] { (void)trained.saver->save(); }), "the folder is another job's");
  });
  EXPECT_FALSE(newest_complete(folder.path()).has_value());
}

// As after a second signal: what was written is not written again, and what went with the failed folder is.
TEST(EmergencySaver, AllMayTryAgain) {
  const TemporaryFolder folder;
  std::barrier all(kRanks);
  run_local_ranks(kRanks, [&](auto world) {
    bool fails = true;
    TrainedRank trained(std::move(world), folder.path(), [&] {
      if (std::exchange(fails, false)) throw Error("not yet");
    });
    trained.update(5);
    all.arrive_and_wait();
    EXPECT_EQ(error_of<Error>([&] { (void)trained.saver->save(); }), "not yet");
    all.arrive_and_wait();
    if (!fails) std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the others find its failure of before
    EXPECT_EQ(trained.saver->save().step, 5);
  });
  EXPECT_THAT(verify(folder / "checkpoints/step-00000005").damage, IsEmpty());
}

// Checkpoints of the same steps, by the id that the run had before its rollback, may have been set aside.
TEST(EmergencySaver, ARunThatWasRolledBackHasAnotherId) {
  const TemporaryFolder folder;
  run_local_ranks(1, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.fill(4);
    bool is_owner = false;
    EmergencySaver saver(folder.path(), model.state(5), [&] {
      if (!is_owner) throw Error("another job");
    });
    EXPECT_THAT(error_of<Error>([&] { (void)saver.save(); }), HasSubstr("another job")) << "it has claimed step 5";
    is_owner = true;
    saver.before_update();
    saver.after_update({.run_id = "r7", .step = 5, .optimizer_steps = 4});
    const Manifest manifest = read_manifest(saver.save().path);
    EXPECT_EQ(manifest.run_id, "r7");
    EXPECT_THAT(manifest.files.at(0).name, HasSubstr("r7"));
  });
}

TEST(EmergencySaver, NeedsReplicas) {
  const auto can_save = [](int num_ranks, const ShardedOptions& options) {
    bool can = false;
    run_local_ranks(num_ranks, [&](auto world) {
      const bool is_first = world->rank() == 0;
      SavedModel model(std::move(world), test::small_units(), options);
      if (is_first) can = EmergencySaver::can_save(model.root());
    });
    return can;
  };
  EXPECT_TRUE(can_save(4, {.fsdp = {.strategy = fsdp::Strategy::hybrid_shard}, .shard_size = 2}));
  EXPECT_TRUE(can_save(2, {.fsdp = {.strategy = fsdp::Strategy::no_shard}}));
  EXPECT_FALSE(can_save(2, {.fsdp = {.strategy = fsdp::Strategy::no_shard}, .buffers = {{"mean", Shape{3}}}})) << "a forward may move it";
  EXPECT_FALSE(can_save(2, {}));
  EXPECT_FALSE(can_save(1, {}));
}

TEST(EmergencySaver, RefusesAModelWithBuffers) {
  run_local_ranks(1, [&](auto world) {
    SavedModel model(std::move(world), test::small_units(), {.buffers = {{"mean", Shape{3}}}});
    model.fill(1);
    EXPECT_THAT(error_of<Error>([&] { EmergencySaver("run", model.state(1), [] {}); }), HasSubstr("a model with buffers"));
  });
}

}  // namespace
}  // namespace mica::checkpoint
