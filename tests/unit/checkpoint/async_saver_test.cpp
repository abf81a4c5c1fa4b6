// SPDX-License-Identifier: Apache-2.0
// Saving in the background: what is written is what the model held at start(), whatever happens to it afterwards.

#include "mica/checkpoint/async_saver.hpp"

#include <atomic>
#include <barrier>
#include <filesystem>
#include <limits>
#include <thread>

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
using ::testing::Not;
namespace fs = std::filesystem;

/// A model and a saver whose thread talks over a group of its own.
struct Trained {
  Trained(std::unique_ptr<ProcessGroup> world, const test::Units& units, const ShardedOptions& options = {}, Retries retries = {})
      : background_group(world->duplicate("background")),
        stream(make_cpu_stream("background", StreamMode::inlined)),
        model(std::move(world), units, options),
        saver(make_group_comm(*background_group, *stream), model.weights().pool(), std::move(retries)) {}

  void start(const std::string& run, std::int64_t step, const SaveOptions& options = {}) {
    saver.start(run, model.state(step), model.comm(), options);
  }

  std::unique_ptr<ProcessGroup> background_group;
  std::unique_ptr<Stream> stream;
  SavedModel model;
  AsyncSaver saver;
};

/// Holds the background thread of every rank at a point until it is let go.
class Gate {
 public:
  explicit Gate(std::string point) : point_(std::move(point)) {}
  [[nodiscard]] SaveOptions options() {
    SaveOptions options;
    options.at_point = [this](std::string_view point) {
      if (point == point_) is_open_.wait(false);
    };
    return options;
  }
  void open() {
    is_open_ = true;
    is_open_.notify_all();
  }

 private:
  std::string point_;
  std::atomic<bool> is_open_{false};
};

struct MeshCase {
  int num_ranks;
  int shard_size;
  std::vector<int> unsharded;
};

class AsyncRoundTrip : public ::testing::TestWithParam<MeshCase> {};

TEST_P(AsyncRoundTrip, WritesWhatWasThereAtTheStart) {
  const MeshCase& mesh = GetParam();
  const TemporaryFolder folder;
  std::barrier have_looked(mesh.num_ranks);  // a rank that writes nothing has no gate of its own
  run_local_ranks(mesh.num_ranks, [&](auto world) {
    ShardedOptions options{.shard_size = mesh.shard_size, .unsharded = mesh.unsharded};
    if (mesh.shard_size != mesh.num_ranks) options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
    Trained trained(std::move(world), test::odd_units(), options);
    trained.model.fill(7);
    const auto expected = trained.model.bits();
    Gate gate("metadata written");
    trained.start(folder.path(), 500, gate.options());
    trained.model.fill(8);  // training goes on
    EXPECT_FALSE(trained.saver.take_finished().has_value());
    have_looked.arrive_and_wait();
    gate.open();
    trained.saver.wait();
    const std::optional<SaveReport> report = trained.saver.take_finished();
    ASSERT_TRUE(report.has_value());
    EXPECT_FALSE(trained.saver.take_finished().has_value());
    EXPECT_EQ(report->path, folder / "checkpoints/step-00000500");
    (void)trained.model.load(report->path);
    EXPECT_EQ(trained.model.bits(), expected);
  });
  EXPECT_THAT(verify(folder / "checkpoints/step-00000500").damage, IsEmpty());
}

// Its state stays when a unit is frozen after its first step, here before the saver has reserved any memory.
TEST(AsyncSaver, SavesTheStateOfWhatIsFrozenNow) {
  const TemporaryFolder folder;
  for (const int num_ranks : {1, 2}) {
    run_local_ranks(num_ranks, [&](auto world) {
      Trained trained(std::move(world), test::odd_units(), {.ignores_first = true});
      trained.model.fill(7);
      for (const fsdp::Unit* unit : trained.model.root().units()) {
        if (unit->storage() == nullptr) continue;
        for (const fsdp::UnitParameter& p : unit->storage()->parameters()) p.parameter->requires_grad = false;
      }
      for (const fsdp::UnitParameter& p : trained.model.root().ignored_parameters()) p.parameter->requires_grad = false;
      const auto expected = trained.model.bits();
      trained.start(folder.path(), num_ranks);
      trained.saver.wait();
      const std::optional<SaveReport> report = trained.saver.take_finished();
      ASSERT_TRUE(report.has_value());
      trained.model.fill(8);
      (void)trained.model.load(report->path);
      EXPECT_EQ(trained.model.bits(), expected);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, AsyncRoundTrip,
                         ::testing::Values(MeshCase{1, 1, {}}, MeshCase{2, 2, {}}, MeshCase{3, 3, {}}, MeshCase{4, 2, {0}}),
                         [](const auto& info) { return fmt::format("ranks{}_shard{}", info.param.num_ranks, info.param.shard_size); });

// Twice the same memory, as many bytes as were announced; a second save waits for the first.
TEST(AsyncSaver, UsesItsMemoryAgainAndSavesOneAfterTheOther) {
  const TemporaryFolder folder;
  run_local_ranks(2, [&](auto world) {
    Trained trained(std::move(world), test::odd_units());
    trained.model.fill(1);
    trained.saver.reserve(trained.model.root(), &trained.model.optimizer());
    const std::int64_t bytes = snapshot_bytes(trained.model.root(), &trained.model.optimizer());
    // Room to begin at a sector; 3 kinds of the units' shards, each rounded up to sectors of 512 bytes: 1307*103 and 1307 after a gap, 211
    // after a gap, 33, halved.
    std::int64_t expected = 512;
    for (const std::int64_t shard : {std::int64_t{(134656 + 1307 + 1) / 2}, std::int64_t{(64 + 210) / 2}, std::int64_t{17}}) {
      expected += 3 * ((shard * 4 + 511) / 512 * 512);
    }
    EXPECT_EQ(bytes, expected);
    EXPECT_EQ(trained.model.weights().pool().stats().current_of(MemoryRole::snapshot), bytes);
    trained.start(folder.path(), 1);
    Gate gate("metadata written");
    trained.start(folder.path(), 2, gate.options());
    EXPECT_TRUE(fs::exists(folder / "checkpoints/step-00000001"));
    EXPECT_TRUE(trained.saver.is_under_way());
    EXPECT_FALSE(trained.saver.take_finished().has_value()) << "the first one's report is gone with the second's start";
    gate.open();
    trained.saver.wait();
    EXPECT_FALSE(trained.saver.is_under_way());
    EXPECT_TRUE(fs::exists(folder / "checkpoints/step-00000002"));
    EXPECT_EQ(trained.model.weights().pool().stats().peak_of(MemoryRole::snapshot), bytes);
  });
}

TEST(AsyncSaver, AFailureInTheBackgroundIsThrownOnEveryRankAndLeavesNothing) {
  const TemporaryFolder folder;
  run_local_ranks(3, [&](auto world) {
    Trained trained(std::move(world), test::small_units());
    trained.model.fill(1);
    SaveOptions options;
    if (trained.model.comm().rank() == 1) {
      options.at_point = [](std::string_view point) {
        if (point == "metadata written") throw IoError("the disk is gone");
      };
    }
    trained.start(folder.path(), 1, options);
    while (!trained.saver.is_failed()) std::this_thread::yield();
    EXPECT_FALSE(trained.saver.take_finished().has_value());
    EXPECT_THAT(error_of<IoError>([&] { trained.saver.wait(); }), HasSubstr("rank 1: the disk is gone"));
    EXPECT_THAT(list_checkpoints(folder / "checkpoints"), IsEmpty());
    // The next one is none the worse for it.
    trained.start(folder.path(), 2);
    trained.saver.wait();
    EXPECT_TRUE(trained.saver.take_finished().has_value());
  });
  EXPECT_THAT(verify(folder / "checkpoints/step-00000002").damage, IsEmpty());
  EXPECT_FALSE(fs::exists(folder / "checkpoints/step-00000001.tmp"));
}

/// A save that fails on rank 1 at its first attempts.
template <class SaveError = IoError>
struct FailingSave {
  explicit FailingSave(std::unique_ptr<ProcessGroup> world, Retries retries)
      : trained(std::move(world), test::small_units(), {}, std::move(retries)) {
    trained.model.fill(1);
  }

  void start(const std::string& run, int num_failures) {
    SaveOptions options;
    if (trained.model.comm().rank() == 1) {
      options.at_point = [this, num_failures](std::string_view point) {
        if (point == "metadata written" && num_attempts++ < num_failures) throw SaveError("the disk is away");
      };
    }
    trained.start(run, 1, options);
  }

  Trained trained;
  int num_attempts = 0;
};

TEST(AsyncSaver, ASaveIsTriedAgainAsOftenAsToldAndEachFailureIsSaidOnce) {
  for (const int num_failures : {1, 2, 3}) {
    const TemporaryFolder folder;
    run_local_ranks(3, [&](auto world) {
      using namespace std::chrono_literals;
      FailingSave<> save(std::move(world), {{1ms, 2ms}, {}});
      save.start(folder.path(), num_failures);
      const bool is_saved = num_failures <= 2;
      if (is_saved) {
        save.trained.saver.wait();
      } else {
        EXPECT_EQ(error_of<IoError>([&] { save.trained.saver.wait(); }), "rank 1: the disk is away (attempt 3 of 3)");
      }
      EXPECT_EQ(save.trained.saver.take_finished().has_value(), is_saved);
      const std::vector<std::string> failed = save.trained.saver.take_failed_attempts();
      ASSERT_EQ(failed.size(), static_cast<std::size_t>(std::min(num_failures, 2)));
      EXPECT_EQ(failed[0], "rank 1: the disk is away (attempt 1 of 3); the next one is in 0.001 s");
      EXPECT_THAT(save.trained.saver.take_failed_attempts(), IsEmpty());
    });
    EXPECT_EQ(list_checkpoints(folder / "checkpoints").size(), num_failures <= 2 ? 1U : 0U);
    for (const auto& entry : fs::directory_iterator(folder / "checkpoints")) EXPECT_THAT(entry.path().string(), Not(HasSubstr(".tmp")));
  }
}

// A folder that is read-only or forbidden is the user's mistake where it stays so, but may be one for a while.
TEST(AsyncSaver, AFolderThatIsReadOnlyForAWhileIsTriedAgain) {
  const TemporaryFolder folder;
  run_local_ranks(2, [&](auto world) {
    using namespace std::chrono_literals;
    FailingSave<ConfigError> save(std::move(world), {{1ms}, {}});
    save.start(folder.path(), 2);
    EXPECT_EQ(error_of<ConfigError>([&] { save.trained.saver.wait(); }), "rank 1: the disk is away (attempt 2 of 2)");
    save.num_attempts = 0;
    save.start(folder.path(), 1);
    save.trained.saver.wait();
    EXPECT_TRUE(save.trained.saver.take_finished().has_value());
  });
}

// One rank alone is told so: all end with it.
TEST(AsyncSaver, WhoMustStopWaitsForNoFurtherAttempt) {
  const TemporaryFolder folder;
  std::atomic<bool> stops = false;
  run_local_ranks(3, [&](auto world) {
    const bool hears = world->rank() == 2;
    FailingSave<> save(std::move(world), {{std::chrono::hours(1)}, [&stops, hears] { return hears && stops; }});
    save.start(folder.path(), 1);
    std::vector<std::string> failed;
    while (failed.empty()) failed = save.trained.saver.take_failed_attempts();  // it pauses, for an hour
    stops = true;
    EXPECT_THAT(error_of<IoError>([&] { save.trained.saver.wait(); }), HasSubstr("(attempt 1 of 2)"));
    save.start(folder.path(), 0);
    save.trained.saver.wait();
    EXPECT_TRUE(save.trained.saver.take_finished().has_value());
  });
}

// A rank that cannot even copy: nobody is left waiting for it.
TEST(AsyncSaver, ARankWithoutMemoryStopsAllBeforeAnythingIsWritten) {
  const TemporaryFolder folder;
  run_local_ranks(2, [&](auto world) {
    Trained trained(std::move(world), test::odd_units());
    trained.model.fill(1);
    Pool& pool = trained.model.weights().pool();
    if (trained.model.comm().rank() == 1) pool.set_limit(pool.stats().current + 1000);
    EXPECT_THAT(error_of<IoError>([&] { trained.start(folder.path(), 1); }), HasSubstr("rank 1: "));
    EXPECT_FALSE(fs::exists(folder / "checkpoints"));
    pool.set_limit(std::numeric_limits<std::int64_t>::max());
    trained.start(folder.path(), 2);
    trained.saver.wait();
    EXPECT_TRUE(trained.saver.take_finished().has_value());
  });
}

}  // namespace
}  // namespace mica::checkpoint
