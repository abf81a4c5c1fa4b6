// SPDX-License-Identifier: Apache-2.0
// Which checkpoints a run leaves in its folder, and what becomes of a save on a disk that is full for a while.

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAreArray;

class Retention : public ::testing::Test {
 protected:
  Retention() {
    write_tokens(folder_ / "tokens.bin", 20'000);
    write_tokens(folder_ / "val.bin", 2'000);
    write_text(folder_ / "run.cfg",
               "[model]\ntype = gpt2\nlayers = 2\nheads = 2\nwidth = 64\nvocab_size = 256\ncontext = 32\n"
               "[data]\ntrain = " +
                   (folder_ / "tokens.bin") +
                   "\n"
                   "[train]\nsteps = 20\nmicro_batch = 2\nglobal_batch = 4\nseq_len = 32\nlog_interval = 1\n"
                   "[optim]\ntype = sgd\nlr = 0.5\nschedule = constant\n"
                   "[run]\ndir = " +
                   run_folder() + "\n");
  }
  [[nodiscard]] std::string run_folder() const { return folder_ / "run"; }
  [[nodiscard]] static std::string name_of(std::int64_t step) {
    const std::string digits = std::to_string(step);
    return "step-" + std::string(8 - digits.size(), '0') + digits;
  }
  [[nodiscard]] Finished train(int num_ranks, const std::vector<std::string>& flags) const {
    return test::run(training(num_ranks, folder_ / "run.cfg", flags));
  }
  /// Runs `script`, which trains, ends with status 75 and leaves whole checkpoints.
  [[nodiscard]] Finished train_while_broken(const char* script, std::map<std::string, std::string> environment, int num_ranks,
                                            const std::string& in_background) const {
    SCOPED_TRACE(std::to_string(num_ranks) + " ranks, checkpoint.async=" + in_background);
    const TemporaryFolder own;
    fs::create_directories(own / "disk");
    environment["DISK"] = own / "disk";
    Child child(
        in_mount_namespace(script, training(num_ranks, folder_ / "run.cfg",
                                            {"--run.dir=" + (own / "disk/run"), "--train.steps=100000000",
                                             "--checkpoint.async=" + in_background, "--checkpoint.interval=300", "--optim.type=adamw"})),
        environment);
    Finished stopped = child.wait();
    EXPECT_NE(stopped.status, 99) << "no tmpfs can be mounted";
    EXPECT_EQ(stopped.status, 75) << stopped.output;
    const std::string kept = own / "disk.kept";
    EXPECT_THAT(checkpoints_of(kept), Not(IsEmpty()));
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(kept + "/checkpoints", none)) {
      EXPECT_NE(entry.path().extension(), ".tmp");
      EXPECT_EQ(test::run({program("mica-inspect"), "verify", entry.path().string()}).status, 0);
    }
    return stopped;
  }
  /// The step with the lowest validation loss among the saved ones, by metrics.jsonl.
  [[nodiscard]] std::int64_t best_step() const {
    std::int64_t best = 0;
    double lowest = std::numeric_limits<double>::infinity();
    std::ifstream file(run_folder() + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row["event"] != "eval" || row["step"].get<std::int64_t>() % 2 != 0 || row["val_loss"] > lowest) continue;
      lowest = row["val_loss"];
      best = row["step"];
    }
    return best;
  }

  TemporaryFolder folder_;
};

TEST_F(Retention, NewestEveryAndBestStayAcrossLaunchesAndSoDoesWhatWasSetAside) {
  const std::vector<std::string> rules{
      "--data.val=" + (folder_ / "val.bin"), "--train.eval_interval=1", "--checkpoint.interval=2", "--checkpoint.keep=2",
      "--checkpoint.keep_every=6",           "--checkpoint.keep_best=1"};
  const auto expect_kept = [&](std::int64_t last) {
    std::vector<std::string> expected;
    for (std::int64_t step = 6; step <= last; step += 6) expected.push_back(name_of(step));
    for (const std::int64_t step : {last - 2, last, best_step()}) expected.push_back(name_of(step));
    std::ranges::sort(expected);
    expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
    EXPECT_THAT(checkpoints_of(run_folder()), UnorderedElementsAreArray(expected)) << "best: " << best_step();
  };
  const auto with = [&](const std::string& flag) {
    std::vector<std::string> flags = rules;
    flags.push_back(flag);
    return flags;
  };
  for (const auto& [num_ranks, steps] : std::vector<std::pair<int, int>>{{1, 10}, {2, 14}, {4, 20}}) {
    std::vector<std::string> flags = with("--train.steps=" + std::to_string(steps));
    if (num_ranks == 4) flags.emplace_back("--train.micro_batch=1");
    const Finished run = train(num_ranks, flags);
    ASSERT_EQ(run.status, 0) << run.output;
    expect_kept(steps);
  }
  const Finished shown = test::run({program("mica-inspect"), run_folder()});
  EXPECT_THAT(shown.output, AllOf(HasSubstr("step 6: a multiple of 6 steps"), HasSubstr("step 20: one of the 2 newest"),
                                  HasSubstr("the lowest validation loss, ")));
  // Back to 12, and on: 14 to 20 are set aside, and stay.
  std::vector<std::string> back = with("--checkpoint.resume=" + run_folder() + "/checkpoints/" + name_of(12));
  back.emplace_back("--optim.lr=0.25");
  const std::vector<std::string> before = checkpoints_of(run_folder());
  const auto num_later = std::ranges::count_if(before, [&](const std::string& name) { return name > name_of(12); });
  const Finished again = train(2, back);
  ASSERT_EQ(again.status, 0) << again.output;
  const std::string aside = run_folder() + "/checkpoints/set-aside-1";
  EXPECT_EQ(std::ranges::count_if(fs::directory_iterator(aside), [](const auto& entry) { return entry.is_directory(); }), num_later);
  EXPECT_TRUE(fs::exists(aside + "/" + name_of(20) + "/manifest.json"));
  for (const std::int64_t step : {6, 12, 18, 20}) EXPECT_TRUE(fs::exists(run_folder() + "/checkpoints/" + name_of(step))) << step;
}

// Each launch evaluates other sequences than the one before it: the first sixteen, all, those of another file.
TEST_F(Retention, ABestOneOfOtherSequencesDoesNotStayForEver) {
  write_tokens(folder_ / "other.bin", 1'000);
  const auto train_to = [&](int steps, const std::string& val, const std::string& eval_batches) {
    return train(2, {"--data.val=" + (folder_ / val), "--train.eval_interval=2", "--checkpoint.interval=2", "--checkpoint.keep=1",
                     "--checkpoint.keep_best=1", "--train.steps=" + std::to_string(steps), "--train.eval_batches=" + eval_batches});
  };
  const auto val_data_of = [&](std::int64_t step) -> std::string {
    return nlohmann::json::parse(read_text(run_folder() + "/checkpoints/" + name_of(step) + "/manifest.json")).at("val_data");
  };
  ASSERT_EQ(train_to(6, "val.bin", "1").status, 0);
  EXPECT_THAT(val_data_of(6), AllOf(HasSubstr("2000 tokens in 1 file, crc32c "), HasSubstr("; 16 sequences of 32 tokens")));
  const Finished all = train_to(12, "val.bin", "0");
  ASSERT_EQ(all.status, 0) << all.output;
  EXPECT_THAT(all.output, HasSubstr("train.eval_batches: 1 -> 0: checkpoint.keep_best compares losses of the same sequences only"));
  EXPECT_THAT(val_data_of(12), AllOf(HasSubstr("2000 tokens in 1 file, crc32c "), HasSubstr("; 62 sequences of 32 tokens")));
  for (const std::string& name : checkpoints_of(run_folder())) EXPECT_GT(name, name_of(6));
  const Finished other = train_to(18, "other.bin", "0");
  ASSERT_EQ(other.status, 0) << other.output;
  EXPECT_THAT(val_data_of(18), AllOf(HasSubstr("1000 tokens in 1 file, crc32c "), HasSubstr("; 31 sequences of 32 tokens")));
  for (const std::string& name : checkpoints_of(run_folder())) EXPECT_GT(name, name_of(12));
}

TEST_F(Retention, ADivergedRunKeepsItsLastCheckpointWithAFiniteLoss) {
  const std::vector<std::string> rules{"--checkpoint.interval=5", "--checkpoint.keep=1"};
  const auto train_to = [&](int steps, const std::string& lr) {
    std::vector<std::string> flags = rules;
    flags.insert(flags.end(), {"--train.steps=" + std::to_string(steps), "--optim.lr=" + lr, "--optim.grad_clip=0"});
    return train(2, flags);
  };
  ASSERT_EQ(train_to(10, "0.5").status, 0);
  EXPECT_THAT(checkpoints_of(run_folder()), UnorderedElementsAreArray({name_of(10)}));
  const Finished diverged = train_to(25, "1e6");
  EXPECT_EQ(diverged.status, 0) << diverged.output;
  EXPECT_THAT(diverged.output, HasSubstr("is NaN or infinite: train.on_bad_step"));
  EXPECT_THAT(checkpoints_of(run_folder()), UnorderedElementsAreArray({name_of(10), name_of(25)}));
  EXPECT_THAT(
      train_to(30, "0.5").output,
      HasSubstr(
          "a parameter, or the loss or gradient norm of step 25 or the next one, was NaN or infinite, and may stay so: --checkpoint.resume=FOLDER"));
}

// Steps that on_bad_step rejects change nothing: the one before them, which was accepted, has spoilt the model.
TEST_F(Retention, RejectedStepsMarkWhatIsSavedAfterThem) {
  const auto train_to = [&](int steps, const std::string& lr, const std::string& on_bad_step) {
    return train(2, {"--checkpoint.interval=5", "--checkpoint.keep=1", "--train.steps=" + std::to_string(steps), "--optim.lr=" + lr,
                     "--optim.grad_clip=0", "--train.on_bad_step=" + on_bad_step});
  };
  ASSERT_EQ(train_to(10, "0.5", "none").status, 0);
  const Finished skipped = train_to(40, "1e6", "skip");
  EXPECT_EQ(skipped.status, 3) << skipped.output;
  EXPECT_THAT(skipped.output, HasSubstr("10 steps in a row were"));
  const std::vector<std::string> left = checkpoints_of(run_folder());
  EXPECT_EQ(left.front(), name_of(10));
  ASSERT_EQ(left.size(), 2U) << "and the newest, which is of no use";
  // A rollback goes back past it, and leaves it beside the run.
  const Finished back = train_to(40, "0.5", "rollback");
  EXPECT_EQ(back.status, 0) << back.output;
  EXPECT_THAT(back.output, AllOf(HasSubstr("rolled back to " + run_folder() + "/checkpoints/" + name_of(10)),
                                 HasSubstr("later checkpoints, whose training had diverged, are now in")));
  EXPECT_TRUE(fs::exists(run_folder() + "/checkpoints/set-aside-1/" + left.back()));
}

// A launch on two ranks to step 40 that rolls back past the step from which it began: what is left of the metrics describes it, and not a
// launch before, on one rank.
TEST_F(Retention, ARollbackKeepsTheLaunchsOwnRows) {
  const auto train_to = [&](int ranks, int steps, const std::string& lr, const std::string& on_bad_step) {
    return train(ranks, {"--checkpoint.interval=5", "--checkpoint.keep=1", "--train.steps=" + std::to_string(steps), "--optim.lr=" + lr,
                         "--optim.grad_clip=0", "--train.on_bad_step=" + on_bad_step});
  };
  ASSERT_EQ(train_to(1, 10, "0.5", "none").status, 0);
  ASSERT_EQ(train_to(1, 30, "1e6", "skip").status, 3);
  const Finished back = train_to(2, 40, "0.5", "rollback");
  EXPECT_EQ(back.status, 0) << back.output;
  EXPECT_THAT(back.output, HasSubstr("rolled back to "));
  nlohmann::json started, memory;
  bool is_rolled_back = false;
  std::ifstream file(run_folder() + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    if (row.at("event") == "started") started = row;
    is_rolled_back |= row.at("event") == "rolled_back";
    if (is_rolled_back && row.at("event") == "memory") memory = row;
  }
  EXPECT_TRUE(is_rolled_back);
  EXPECT_EQ(started.value("ranks", 0), 2) << started;
  EXPECT_EQ(started.value("steps", 0), 40) << started;
  EXPECT_EQ(started.value("step", 0), 10) << started;
  EXPECT_FALSE(memory.is_null());
}

// With fp16 the loss scaler would skip all steps of a spoilt model, for ever.
TEST_F(Retention, AnFp16RunThatHasDivergedEndsAndKeepsItsLastSoundCheckpoint) {
  const auto train_to = [&](int steps, const std::string& lr) {
    return train(2, {"--checkpoint.interval=5", "--checkpoint.keep=1", "--train.steps=" + std::to_string(steps), "--optim.lr=" + lr,
                     "--optim.grad_clip=0", "--fsdp.param_dtype=fp16", "--optim.loss_scale=64"});
  };
  ASSERT_EQ(train_to(10, "0.5").status, 0);
  const Finished ended = train_to(200, "1e6");
  EXPECT_EQ(ended.status, 3) << ended.output;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("is NaN or infinite: its activations do not fit fp16"),
                                  HasSubstr("overflows fp16 with the least loss scale, 5.96046e-08, and so did the 9 before it")));
  EXPECT_EQ(checkpoints_of(run_folder()).front(), name_of(10));
}

/// On a small file system of its own BREAK makes saves fail from the first step on (a start refuses a full disk), until one has failed and
/// MEND mends it; then, once a checkpoint is there, mpirun is told to stop.
constexpr const char* kBrokenForAWhile = R"(
mount -t tmpfs -o size=6m tmpfs "$DISK" || exit 99
"$@" & launcher=$!
until grep -q '"event":"step"' "$DISK/run/metrics.jsonl" 2> /dev/null; do kill -0 $launcher || exit 98; sleep 0.05; done
eval "$BREAK"
until grep -q 'attempt 1 of 4' "$DISK/run/log.txt" 2> /dev/null; do kill -0 $launcher || exit 98; sleep 0.05; done
eval "$MEND"
until sed -n '/attempt 1 of 4/,$p' "$DISK/run/log.txt" | grep -q 'saved '; do kill -0 $launcher || exit 97; sleep 0.05; done
kill -USR1 $launcher
wait $launcher
status=$?
cp -r "$DISK/run" "$DISK.kept"
exit $status
)";

using Environment = std::map<std::string, std::string>;
const Environment kFullDisk{{"BREAK", R"(head -c 5000000 /dev/zero > "$DISK/ballast")"}, {"MEND", R"(rm "$DISK/ballast")"}};

TEST_F(Retention, ASaveOutlivesADiskThatIsFullForAWhile) {
  for (const int num_ranks : {1, 2}) {
    for (const char* in_background : {"false", "true"}) {
      const Finished stopped = train_while_broken(kBrokenForAWhile, kFullDisk, num_ranks, in_background);
      EXPECT_THAT(stopped.output, AllOf(HasSubstr("no room for a checkpoint of"), HasSubstr("(attempt 1 of 4); the next one is in 1 s")));
    }
  }
}

TEST_F(Retention, ASaveOutlivesALockThatCannotBeReadForAWhile) {
  // Its name leads to a link to itself.
  const Environment unreadable{
      {"BREAK", R"((cd "$DISK/run"; ln run.lock kept.lock; ln -s loop loop; ln -s loop away; mv -T away run.lock))"},
      {"MEND", R"(mv -T "$DISK/run/kept.lock" "$DISK/run/run.lock")"}};
  for (const char* in_background : {"false", "true"}) {
    const Finished stopped = train_while_broken(kBrokenForAWhile, unreadable, 2, in_background);
    EXPECT_THAT(stopped.output,
                AllOf(::testing::ContainsRegex("warning: [^\n]*/disk/run/run.lock: open failed"),
                      HasSubstr("open failed: Too many levels of symbolic links (attempt 1 of 4); the next one is in 1 s")));
  }
}

/// The same, but what BREAK did is mended, and the run told to stop, while it pauses for the last attempt. Until then it only trains on:
/// other tests go first.
constexpr const char* kStopInAPause = R"(
mount -t tmpfs -o size=6m tmpfs "$DISK" || exit 99
nice "$@" & launcher=$!
until grep -q '"event":"step"' "$DISK/run/metrics.jsonl" 2> /dev/null; do kill -0 $launcher || exit 98; sleep 0.05; done
eval "$BREAK"
until grep -q 'attempt 3 of 4' "$DISK/run/log.txt" 2> /dev/null; do kill -0 $launcher || exit 98; sleep 0.05; done
eval "$MEND"
kill -USR1 $launcher
wait $launcher
status=$?
cp -r "$DISK/run" "$DISK.kept"
exit $status
)";

// The save of the stop takes the place of the one that failed: on a full disk, and in a folder that is read-only for a while.
TEST_F(Retention, AStopWaitsForNoFurtherAttempt) {
  const Environment read_only{
      {"BREAK",
       R"(all="$DISK/run/checkpoints"; mkdir -p "$all"; mount --bind "$all" "$all" && mount -o remount,ro,bind "$all" || exit 99)"},
      {"MEND", R"(umount "$all")"}};
  for (const Environment& how : {kFullDisk, read_only}) {
    SCOPED_TRACE(how.at("BREAK"));
    const TemporaryFolder own;
    fs::create_directories(own / "disk");
    std::map<std::string, std::string> environment = how;
    environment["DISK"] = own / "disk";
    Child child(in_mount_namespace(kStopInAPause,
                                   training(2, folder_ / "run.cfg",
                                            {"--run.dir=" + (own / "disk/run"), "--train.steps=100000000", "--checkpoint.async=true",
                                             "--checkpoint.interval=1000000", "--optim.type=adamw", "--checkpoint.interval_minutes=0.05",
                                             "--train.micro_batch=16", "--train.global_batch=32"})),
                environment);
    const Finished stopped = child.wait();
    ASSERT_NE(stopped.status, 99) << "no tmpfs can be mounted\n" << stopped.output;
    EXPECT_EQ(stopped.status, 75) << stopped.output;
    EXPECT_THAT(stopped.output, AllOf(HasSubstr("(attempt 3 of 4); the next save replaces it"), HasSubstr("SIGUSR1 on rank 1")));
    const Finished shown = test::run({program("mica-inspect"), "--json", own / "disk.kept"});
    EXPECT_EQ(shown.status, 0) << shown.output;
    EXPECT_EQ(nlohmann::json::parse(shown.output)["line"].size(), 1U) << "no parent that was never complete";
  }
}

/// The disk stays full. While it pauses, it only trains on: other tests go first.
constexpr const char* kFull = R"(
mount -t tmpfs -o size=6m tmpfs "$DISK" || exit 99
nice "$@" & launcher=$!
until grep -q '"event":"step"' "$DISK/run/metrics.jsonl" 2> /dev/null; do kill -0 $launcher || exit 98; sleep 0.05; done
head -c 5000000 /dev/zero > "$DISK/ballast"
wait $launcher
status=$?
ls "$DISK/run/checkpoints"
exit $status
)";

TEST_F(Retention, NoRoomIsToldBeforeAnythingIsWrittenAndAfterTheLastAttempt) {
  const TemporaryFolder own;
  std::vector<std::unique_ptr<Child>> children;  // at once: they wait for most of the time
  for (const std::string in_background : {"false", "true"}) {
    const std::string disk = own / in_background;
    fs::create_directories(disk);
    children.push_back(std::make_unique<Child>(
        in_mount_namespace(kFull, training(2, folder_ / "run.cfg",
                                           {"--run.dir=" + disk + "/run", "--train.steps=100000000", "--optim.type=adamw",
                                            "--checkpoint.async=" + in_background, "--checkpoint.interval=300"})),
        std::map<std::string, std::string>{{"DISK", disk}}));
  }
  for (const auto& child : children) {
    const Finished full = child->wait();
    ASSERT_NE(full.status, 99) << "no tmpfs can be mounted\n" << full.output;
    EXPECT_EQ(full.status, 3) << full.output;
    ASSERT_EQ(full.error_lines().size(), 1U) << full.output;
    EXPECT_THAT(full.error_lines()[0],
                AllOf(HasSubstr("no room for a checkpoint of"), HasSubstr("bytes free); free space there"), HasSubstr("(attempt 4 of 4)")));
    EXPECT_EQ(full.output.find("\nstep-0"), std::string::npos);
    EXPECT_EQ(full.output.find(".tmp\n"), std::string::npos) << "no half checkpoint remains";
  }
}

}  // namespace
}  // namespace mica::test
