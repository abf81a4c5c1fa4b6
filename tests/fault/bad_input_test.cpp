// A user's mistakes: each ends the job within seconds on all ranks, with a status of docs/design.md, Programs and files, and
// one line that says what, where and what was expected; what was saved earlier stays as it is.

#include <algorithm>
#include <filesystem>
#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr double kSeconds = 60;  // also where others use the machine: what hangs does so for ever

struct Case {
  std::string name;
  std::vector<std::string> command;
  int status = 2;
  std::vector<std::string> says;  // all of them, in the one line
};

void expect_refused(const Case& expected, const Finished& seen) {
  SCOPED_TRACE(expected.name + "\n" + seen.output);
  EXPECT_FALSE(seen.is_timed_out);
  EXPECT_LT(seen.seconds, kSeconds);
  EXPECT_EQ(seen.status, expected.status);
  const std::vector<std::string> lines = seen.error_lines();
  ASSERT_EQ(lines.size(), 1u);
  for (const std::string& part : expected.says) EXPECT_THAT(lines[0], HasSubstr(part));
}

/// Three at a time: launchers mostly sleep when a job fails.
void expect_all_refused(const std::vector<Case>& cases) {
  constexpr std::size_t kAtOnce = 3;
  for (std::size_t first = 0; first < cases.size(); first += kAtOnce) {
    std::vector<std::future<Finished>> children;
    const std::size_t last = std::min(cases.size(), first + kAtOnce);
    for (std::size_t i = first; i < last; ++i) {
      children.push_back(std::async(std::launch::async, [&cases, i] { return test::run(cases[i].command, 30); }));
    }
    for (std::size_t i = first; i < last; ++i) expect_refused(cases[i], children[i - first].get());
  }
}

class BadInput : public ::testing::Test {
 protected:
  BadInput() {
    write_tokens(folder_ / "good.bin", 4000);
    write_text(folder_ / "good.cfg",
               "[model]\ntype = gpt2\nlayers = 1\nheads = 2\nwidth = 16\nvocab_size = 256\ncontext = 32\n"
               "[data]\ntrain = " + (folder_ / "good.bin") + "\n"
               "[train]\nsteps = 4\nmicro_batch = 2\nseq_len = 16\n"
               "[checkpoint]\ninterval = 2\nkeep = 0\n"
               "[run]\ndir = " + run_folder() + "\n");
  }
  [[nodiscard]] std::string run_folder() const { return folder_ / "run"; }
  [[nodiscard]] std::string checkpoints() const { return folder_ / "run/checkpoints"; }
  [[nodiscard]] std::vector<std::string> train(std::vector<std::string> flags, int num_ranks = 2) const {
    return training(num_ranks, folder_ / "good.cfg", std::move(flags));
  }
  [[nodiscard]] Case flag(std::string name, std::string flag, std::vector<std::string> says, int num_ranks = 2) const {
    return {std::move(name), train({std::move(flag)}, num_ranks), 2, std::move(says)};
  }
  [[nodiscard]] Case config(const std::string& name, const std::string& text, std::vector<std::string> says) const {
    const std::string path = folder_ / (name + ".cfg");
    write_text(path, text);
    says.push_back(path);
    return {name, training(2, path, {"--data.train=" + (folder_ / "good.bin"), "--run.dir=" + run_folder()}), 2, std::move(says)};
  }
  /// A run of 4 steps with checkpoints 2 and 4.
  void train_well() const {
    const Finished run = test::run(train({}));
    ASSERT_EQ(run.status, 0) << run.output;
    ASSERT_EQ(checkpoints_of(run_folder()), (std::vector<std::string>{"step-00000002", "step-00000004"}));
  }
  /// A file that loading reads: the first shard, and not model.h5, which is for other programs.
  [[nodiscard]] std::string shard_of(const std::string& checkpoint) const {
    std::vector<std::string> shards;
    for (const fs::directory_entry& file : fs::directory_iterator(checkpoints() + "/" + checkpoint)) {
      if (file.path().filename().string().starts_with("shard-")) shards.push_back(file.path().string());
    }
    std::ranges::sort(shards);
    EXPECT_EQ(shards.size(), 2u) << "one of each rank";
    return shards.empty() ? "" : shards.front();
  }

  TemporaryFolder folder_;
};

TEST_F(BadInput, InTheConfig) {
  expect_all_refused({
      flag("unknown key", "--model.withd=3", {"model.withd", "did you mean model.width"}),
      flag("wrong type", "--model.width=wide", {"model.width", "'wide'", "a whole number"}),
      flag("fraction", "--train.steps=2.5", {"train.steps", "'2.5'", "a whole number"}),
      flag("negative", "--train.micro_batch=-2", {"train.micro_batch", "'-2'", "from 1"}),
      flag("not a number", "--optim.lr=nan", {"optim.lr", "'nan'", "a number"}),
      flag("infinite", "--optim.weight_decay=inf", {"optim.weight_decay", "'inf'"}),
      flag("past 64 bits", "--train.steps=99999999999999999999999", {"train.steps", "a whole number"}),
      flag("past the limit", "--model.width=99999999", {"model.width", "to 1048576"}),
      flag("unknown choice", "--fsdp.strategy=full", {"fsdp.strategy", "'full'", "full_shard", "hybrid_shard"}),
      flag("width and heads", "--model.heads=3", {"model.width = 16", "model.heads = 3"}),
      flag("key of a Llama", "--model.kv_heads=1", {"model.kv_heads = 1", "model.type = gpt2"}),
      flag("too long a sequence", "--train.seq_len=33", {"train.seq_len = 33", "model.context = 32"}),
      {"no config", under_mpirun(2, {program("mica-train")}), 2, {"no config file", "--help"}},
      {"missing config", training(2, folder_ / "none.cfg", {}), 2, {folder_ / "none.cfg", "No such file"}},
      {"folder as config", training(2, folder_.path(), {}), 2, {folder_.path(), "directory"}},
      config("unknown key in file", "[model]\nheigth = 1\n", {"model.heigth", ":2:", "did you mean"}),
      config("no section end", "[model\nwidth = 1\n", {"key = value"}),
  });
  EXPECT_FALSE(fs::exists(run_folder())) << "a config that is refused leaves nothing behind";
}

// Each names the flag or word that is wrong, and where the right ones are told. mica-bench's are tests/bench's.
TEST_F(BadInput, OnTheCommandLine) {
  write_text(folder_ / "text.txt", "To be, or not to be.\n");
  const std::string out = "--out=" + (folder_ / "out.h5");
  const auto alone = [](std::vector<std::string> command, std::vector<std::string> says) {
    says.push_back(command[0] + " ");
    says.emplace_back("--help");
    const std::string name = ::testing::PrintToString(command);
    command[0] = program(command[0]);
    return Case{name, command, 2, std::move(says)};
  };
  expect_all_refused({
      alone({"mica-train", folder_ / "good.cfg", "-x"}, {"unknown flag -x"}),
      alone({"mica-train", folder_ / "good.cfg", "--check=yes"}, {"--check=yes"}),
      alone({"mica-train", folder_ / "good.cfg", "--chekc"}, {"--chekc"}),
      alone({"mica-train", folder_ / "good.cfg", "--model.width"}, {"--model.width has no value"}),
      alone({"mica-train", folder_ / "good.cfg", "--width=3"}, {"--width=3", "width"}),
      flag("two values", "--model.width=3=4", {"model.width is '3=4'"}, 1),
      {"two configs", training(1, folder_ / "good.cfg", {folder_ / "other.cfg"}), 2, {"two config files", "good.cfg", "other.cfg"}},
      alone({"mica-tokenize"}, {"--out is missing"}),
      alone({"mica-tokenize", out, "--vocb=bytes", folder_ / "text.txt"}, {"--vocb=bytes"}),
      alone({"mica-tokenize", out, "-v", folder_ / "text.txt"}, {"-v"}),
      alone({"mica-tokenize", out, folder_ / "text.txt", "--val-fraction"}, {"--val-fraction"}),
      alone({"mica-tokenize", out, "--quiet=no", folder_ / "text.txt"}, {"--quiet"}),
      alone({"mica-inspect"}, {"one checkpoint, got 0"}),
      alone({"mica-inspect", "--jsno", run_folder()}, {"--jsno"}),
      alone({"mica-inspect", "--json=yes", run_folder()}, {"--json=yes"}),
      alone({"mica-inspect", "verfy", run_folder()}, {"unknown command 'verfy'", "verify or diff"}),
      alone({"mica-inspect", "diff", run_folder()}, {"two checkpoints, got 1"}),
      alone({"mica-convert"}, {"wants a command"}),
      alone({"mica-convert", "reshrad", run_folder(), "out"}, {"no command 'reshrad'", "reshard"}),
      alone({"mica-convert", "reshard", run_folder()}, {"reshard wants CHECKPOINT OUT", "got 1"}),
      alone({"mica-convert", "hf-export", run_folder(), "out", "--dtyp=fp32"}, {"no option --dtyp=fp32"}),
      alone({"mica-convert", "hf-export", run_folder(), "out", "--dtype"}, {"--dtype wants a value"}),
  });
  EXPECT_FALSE(fs::exists(folder_ / "out.train.h5"));
}

TEST_F(BadInput, ThatDoesNotFitRanksOrMachine) {
  expect_all_refused({
      flag("batch", "--train.global_batch=5", {"train.global_batch=5", "2 x 2 = 4", "8"}),
      flag("shard size", "--mesh.shard_size=3", {"mesh.shard_size=3", "2 ranks", "1, 2"}),
      flag("strategy", "--mesh.shard_size=2", {"full_shard", "mesh.shard_size", "hybrid_shard"}, 4),
      flag("no GPU", "--mesh.device=cuda", {"mesh.device = cuda", "no GPU can be used", "mesh.device=cpu"}),
      flag("a GPU's backend", "--mesh.backend=nccl", {"mesh.backend = nccl", "GPUs", "on the CPU"}),
      flag("steps to trace", "--log.trace=5-3", {"log.trace", "5-3", "10-12"}),
      {"huge model", train({"--model.layers=10000", "--model.width=1048576"}), 2, {"model.layers = 10000", "model.width = 1048576"}},
      {"large model", train({"--model.layers=1000", "--model.width=16384"}), 2, {"memory", "GiB"}},
      flag("batch past the limit", "--train.micro_batch=16777216", {"train.micro_batch", "to 1048576"}),
      {"huge batch", train({"--train.micro_batch=1048576", "--model.width=256"}), 2, {"memory", "train.micro_batch", "GiB"}},
      {"long accumulation", train({"--train.global_batch=1099511627776"}), 2, {"train.global_batch"}},
  });
  EXPECT_TRUE(checkpoints_of(run_folder()).empty());
}

TEST_F(BadInput, InTokenFiles) {
  write_text(folder_ / "empty.bin", "");
  write_tokens(folder_ / "short.bin", 16);
  write_tokens(folder_ / "past.bin", 4000);
  overwrite_token(folder_ / "past.bin", 1234, 256);
  write_text(folder_ / "odd.h5", "this is no HDF5 file");
  const auto tokens = [&](const std::string& name) { return "--data.train=" + (folder_ / name); };
  expect_all_refused({
      flag("missing", tokens("none.bin"), {"none.bin", "No such file"}),
      flag("no match", tokens("none-*.bin"), {"none-*.bin", "no file matches"}),
      flag("empty", tokens("empty.bin"), {"empty.bin", "empty"}),
      flag("short", tokens("short.bin"), {"short.bin", "16 tokens", "train.seq_len=16", "needs 17"}),
      flag("past the vocabulary", tokens("past.bin"), {"past.bin", "token 1234", "id 256", "vocab_size is 256"}),
      flag("not HDF5", tokens("odd.h5"), {"odd.h5"}),
      {"bad validation file", train({"--data.val=" + (folder_ / "empty.bin")}), 2, {"empty.bin"}},
  });
}

TEST_F(BadInput, CheckpointsThatDoNotFit) {
  train_well();
  const auto before = contents_of(checkpoints());
  const std::string newest = checkpoints() + "/step-00000004";
  expect_all_refused({
      flag("another model", "--model.width=32", {newest, "model.width = 16", "32"}),
      flag("another seed", "--run.seed=9", {newest, "run.seed"}),
      flag("other data", "--train.seq_len=8", {newest, "train.seq_len = 16", "8", "allow_data_change"}),
      flag("not to be resumed", "--checkpoint.resume=none", {run_folder(), newest, "checkpoint.resume"}),
      flag("no such checkpoint", "--checkpoint.resume=" + (folder_ / "other"), {folder_ / "other"}),
  });
  EXPECT_EQ(contents_of(checkpoints()), before);
  // What was refused has not become the run's config either.
  EXPECT_THAT(read_text(run_folder() + "/config.resolved.cfg"), HasSubstr("\nwidth = 16\n"));
}

TEST_F(BadInput, DamagedAndHalfCheckpoints) {
  train_well();
  const std::string good = checkpoints() + "/step-00000002";
  const std::string newest = checkpoints() + "/step-00000004";
  // Half a checkpoint is none: it is ignored, and gone after the next save.
  fs::create_directories(checkpoints() + "/step-00000006.tmp");
  write_text(checkpoints() + "/step-00000006.tmp/shard.h5", "half");
  const Finished resumed = test::run(train({"--train.steps=5"}));
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr(newest + ": step 4"));
  EXPECT_FALSE(fs::exists(checkpoints() + "/step-00000006.tmp"));
  fs::remove_all(checkpoints() + "/step-00000005");

  const std::string sound = read_text(shard_of("step-00000004"));
  damage(shard_of("step-00000004"));
  auto before = contents_of(checkpoints());
  expect_all_refused({{"damaged data", train({"--train.steps=6"}), 2, {shard_of("step-00000004"), "damaged", good}}});
  EXPECT_EQ(contents_of(checkpoints()), before);

  write_text(shard_of("step-00000004"), sound.substr(0, sound.size() / 2));
  expect_all_refused({{"cut short", train({"--train.steps=6"}), 2, {shard_of("step-00000004"), good}}});
  write_text(shard_of("step-00000004"), sound);

  damage(newest + "/manifest.json");
  expect_all_refused({{"damaged manifest", train({"--train.steps=6"}), 2, {newest + "/manifest.json", good}}});

  // What the message advises works.
  const Finished advised = test::run(train({"--train.steps=6", "--checkpoint.resume=" + good}));
  EXPECT_EQ(advised.status, 0) << advised.output;
}

TEST_F(BadInput, FullDisk) {
  for (const char* async : {"false", "true"}) {
    SCOPED_TRACE(std::string("checkpoint.async=") + async);
    const TemporaryFolder own;
    const std::string disk = own / "disk";
    const std::string kept = own / "kept";
    fs::create_directories(disk);
    // A small file system of its own: ext4 in a file if that can be mounted, else in memory.
    const std::string script = "cd '" + own.path() +
                               "'; "
                               "{ dd if=/dev/zero of=image bs=1k count=1500 && /sbin/mkfs.ext4 -q -F -O ^has_journal "
                               "image && mount -o loop image disk; } >/dev/null 2>&1 "
                               "|| mount -t tmpfs -o size=1500k tmpfs disk || exit 99; "
                               "\"$@\"; status=$?; cp -r disk/run kept; exit $status";
    const Finished full = test::run(
        in_mount_namespace(script, train({"--run.dir=" + disk + "/run", "--train.steps=1000", "--log.metrics=false",
                                          std::string("--checkpoint.async=") + async})));
    ASSERT_NE(full.status, 99) << "neither a loop mount nor a tmpfs in a user namespace is possible\n" << full.output;
    expect_refused({"full disk", {}, 3, {"No space left on device", disk, "free"}}, full);
    // What was saved before is whole: the run goes on elsewhere.
    const std::vector<std::string> saved = checkpoints_of(kept);
    ASSERT_GE(saved.size(), 1u);
    for (const std::string& name : saved) {
      EXPECT_EQ(test::run({program("mica-inspect"), "verify", kept + "/checkpoints/" + name}).status, 0) << name;
    }
    const auto steps = std::stoll(saved.back().substr(5));
    const Finished resumed = test::run(train({"--run.dir=" + kept, "--train.steps=" + std::to_string(steps + 2)}));
    EXPECT_EQ(resumed.status, 0) << resumed.output;
  }
}

TEST_F(BadInput, UnwritableRunFolder) {
  train_well();
  const auto before = contents_of(run_folder());
  // The superuser ignores modes, but not a read-only mount.
  const Finished seen =
      test::run(in_mount_namespace("mount --bind '" + run_folder() + "' '" + run_folder() +
                                       "' && mount -o remount,bind,ro '" + run_folder() + "' || exit 99; \"$@\"",
                                   train({"--train.steps=6"})));
  ASSERT_NE(seen.status, 99) << "no mount namespace is possible\n" << seen.output;
  expect_refused({"read-only", {}, 2, {run_folder(), "Read-only file system", "--run.dir"}}, seen);
  EXPECT_EQ(contents_of(run_folder()), before);
  write_text(folder_ / "file", "");
  expect_all_refused({flag("a file in the way", (folder_ / "file").insert(0, "--run.dir="), {folder_ / "file", "--run.dir"})});
}

/// mpirun shows one status; each rank has the same.
TEST_F(BadInput, EveryRankHasTheStatus) {
  const auto statuses = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> command{"/bin/sh", "-c", "\"$@\" >/dev/null 2>&1; echo \"rank status $?;\"", "sh", program("mica-train"), folder_ / "good.cfg"};
    command.insert(command.end(), flags.begin(), flags.end());
    const Finished run = test::run(under_mpirun(3, command));
    EXPECT_EQ(run.status, 0) << run.output;
    std::size_t count = 0;
    for (std::size_t at = 0; (at = run.output.find("rank status 2;", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_EQ(statuses({"--model.width=wide"}), 3u);
  EXPECT_EQ(statuses({"--train.global_batch=5"}), 3u);
  EXPECT_EQ(statuses({"--mesh.shard_size=2"}), 3u);
}

}  // namespace
}  // namespace mica::test
