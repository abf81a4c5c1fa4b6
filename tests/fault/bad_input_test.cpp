// SPDX-License-Identifier: Apache-2.0
// A user's mistakes: each ends the job within seconds on all ranks, with a status of docs/design.md, Programs and files, and
// one line that says what, where and what was expected; what was saved earlier stays as it is.

#include <algorithm>
#include <array>
#include <filesystem>
#include <future>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kSecondsToRefuse = 60;  // also where others use the machine: what hangs does so for ever

struct Case {
  std::string name;
  std::vector<std::string> command;
  int status = 2;
  std::vector<std::string> says;  // all of them, in the one line
};

void expect_refused(const Case& expected, const Finished& seen) {
  SCOPED_TRACE(expected.name + "\n" + seen.output);
  EXPECT_FALSE(seen.is_timed_out);
  EXPECT_EQ(seen.status, expected.status);
  const std::vector<std::string> lines = seen.error_lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_LT(lines[0].size(), 3000u) << "a line that a person can read, whatever the input holds";
  for (const std::string& part : expected.says) EXPECT_THAT(lines[0], HasSubstr(part));
}

/// For jobs that fail after they have taken the run folder, which they share.
void expect_refused_in_turn(const std::vector<Case>& cases) {
  for (const Case& expected : cases) expect_refused(expected, test::run(expected.command, kSecondsToRefuse));
}

/// Three at a time: launchers mostly sleep when a job fails.
void expect_all_refused(const std::vector<Case>& cases) {
  constexpr std::size_t kAtOnce = 3;
  for (std::size_t first = 0; first < cases.size(); first += kAtOnce) {
    std::vector<std::future<Finished>> children;
    const std::size_t last = std::min(cases.size(), first + kAtOnce);
    for (std::size_t i = first; i < last; ++i) {
      children.push_back(std::async(std::launch::async, [&cases, i] { return test::run(cases[i].command, kSecondsToRefuse); }));
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
               "[data]\ntrain = " +
                   (folder_ / "good.bin") +
                   "\n"
                   "[train]\nsteps = 4\nmicro_batch = 2\nseq_len = 16\n"
                   "[checkpoint]\ninterval = 2\nkeep = 0\n"
                   "[run]\ndir = " +
                   run_folder() + "\n");
  }
  [[nodiscard]] std::string run_folder() const { return folder_ / "run"; }
  [[nodiscard]] std::string checkpoints() const { return folder_ / "run/checkpoints"; }
  [[nodiscard]] std::vector<std::string> train(const std::vector<std::string>& flags, int num_ranks = 2) const {
    return training(num_ranks, folder_ / "good.cfg", flags);
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
      config("unknown key in file", "[model]\nlayres = 1\n", {"model.layres", ":2:", "did you mean model.layers"}),
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
      alone({"mica-inspect", "verfy", run_folder()}, {"unknown command 'verfy'", "verify, diff or hang"}),
      alone({"mica-inspect", "diff", run_folder()}, {"two checkpoints, got 1"}),
      alone({"mica-convert"}, {"needs a command"}),
      alone({"mica-convert", "reshrad", run_folder(), "out"}, {"no command 'reshrad'", "reshard"}),
      alone({"mica-convert", "reshard", run_folder()}, {"reshard takes CHECKPOINT OUT", "got 1"}),
      alone({"mica-convert", "hf-export", run_folder(), "out", "--dtyp=fp32"}, {"no option --dtyp=fp32"}),
      alone({"mica-convert", "hf-export", run_folder(), "out", "--dtype"}, {"--dtype needs a value"}),
  });
  EXPECT_FALSE(fs::exists(folder_ / "out.train.h5"));
}

TEST_F(BadInput, HostileConfigs) {
  std::string bytes = "PK\x03\x04\x1b[31m";
  for (int i = 0; i < 4000; ++i) bytes += static_cast<char>(i * 37 % 251);
  expect_all_refused({
      config("other words", "[train]\nlearning_rate = 3e-4\n", {":2:", "unknown key 'train.learning_rate': did you mean optim.lr?"}),
      flag("other words, without a section", "--num_hidden_layers=3", {"did you mean model.layers?"}),
      config("both names", "[model]\nhidden = 8\nintermediate_size = 8\n", {":3:", "model.hidden", "model.intermediate_size"}),
      config("no text", bytes, {"not understood"}),
      config("a NUL", std::string("[run]\nname = a\0b\n", 17), {"control character"}),
      config("no UTF-8 in a key", "[train]\nst\xff\xfe = 3\n", {"unknown key"}),
      config("brackets", std::string(100'000, '['), {":1:", "key = value", "(100000 bytes)"}),
      config("huge number", "[optim]\nlr = 1e999\n", {"optim.lr", "1e999"}),
      config("no number", "[optim]\nlr = NaN\n", {"optim.lr", "NaN"}),
      config("cut short", "[run]\nname = \"a", {"run.name", "quotes"}),
      config("too long", std::string(2'000'000, 'a'), {"more than 1048576 bytes"}),
  });
}

TEST_F(BadInput, ThatDoesNotFitRanksOrMachine) {
  expect_refused_in_turn({
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
  // A login node need not hold the run.
  const Finished check = test::run(train({"--model.layers=1000", "--model.width=16384", "--check"}));
  EXPECT_EQ(check.status, 0) << check.output;
  EXPECT_THAT(check.output, HasSubstr("without --check this run would be refused here: this run needs "));
  EXPECT_THAT(test::run(train({"--check"})).output, Not(HasSubstr("would be refused")));
}

/// What breaks readers of JSON.
std::vector<std::pair<std::string, std::string>> hostile_json() {
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  return {{"empty", ""},
          {"cut short", R"({"model_type": "gpt2", "n_layer)"},
          {"lists in lists", std::string(1'000'000, '[')},
          {"objects in objects", objects},
          {"deep but whole", R"({"a":)" + std::string(10'000, '[') + std::string(10'000, ']') + "}"},
          {"a key twice", R"({"model_type": "gpt2", "model_type": "llama"})"},
          {"a number past all", R"({"n_layer": 1e999})"},
          {"NaN", R"({"layer_norm_epsilon": NaN})"},
          {"infinity", R"({"layer_norm_epsilon": -Infinity})"},
          {"no UTF-8", "{\"model_type\": \"gpt2\xff\"}"},
          {"half a surrogate", R"({"model_type": "\ud800"})"},
          {"a NUL", std::string("{}\0{}", 5)},
          {"a control character", "{\"model_type\": \"a\nb\"}"},
          {"more behind it", R"({} {})"},
          {"a list", "[1, 2]"},
          {"a long text that does not end", "{\"" + std::string(1'000'000, 'x')}};
}

TEST_F(BadInput, HostileJson) {
  const std::string good = test::reference_path("hf_gpt2");
  write_text(folder_ / "text.txt", "to be or not to be\n");
  std::vector<Case> cases;
  const auto add = [&](std::string name, std::string says, std::vector<std::string> command) {
    cases.push_back({std::move(name), std::move(command), 2, {std::move(says)}});
  };
  int number = 0;
  for (const auto& [name, text] : hostile_json()) {
    const std::string own = folder_ / std::to_string(number++);
    fs::create_directories(own + "/config");
    fs::create_directories(own + "/index");
    fs::create_directories(own + "/header");
    fs::create_directories(own + "/step-00000001");
    write_text(own + "/tokenizer.json", text);
    add(name + " as tokenizer.json", own + "/tokenizer.json",
        {program("mica-tokenize"), "--vocab=" + own + "/tokenizer.json", "--out=" + own + "/x.h5", folder_ / "text.txt"});
    write_text(own + "/config/config.json", text);
    add(name + " as config.json", own + "/config/config.json", {program("mica-convert"), "hf-import", own + "/config", own + "/x"});
    fs::copy(good + "/config.json", own + "/index/config.json");
    write_text(own + "/index/model.safetensors.index.json", text);
    add(name + " as an index", "model.safetensors.index.json", {program("mica-convert"), "hf-import", own + "/index", own + "/x"});
    fs::copy(good + "/config.json", own + "/header/config.json");
    std::string header(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) header[i] = static_cast<char>(text.size() >> (8 * i) & 0xffU);
    write_text(own + "/header/model.safetensors", header + text);
    add(name + " as a header", own + "/header/model.safetensors", {program("mica-convert"), "hf-import", own + "/header", own + "/x"});
    write_text(own + "/step-00000001/manifest.json", text);
    add(name + " as a manifest", own + "/step-00000001/manifest.json", {program("mica-inspect"), own + "/step-00000001"});
  }
  const auto config_json = [&](const std::string& name, const std::string& key, const std::string& value) {
    std::string text = read_text(good + "/config.json");
    const std::size_t at = text.find('"' + key + '"');
    const std::size_t colon = text.find(':', at);
    text.replace(colon + 1, text.find_first_of(",\n", colon) - colon - 1, " " + value);
    const std::string own = folder_ / name;
    fs::create_directories(own);
    write_text(own + "/config.json", text);
    return own;
  };
  for (const char* value : {"1e300", "9223372036854775808", "-1", "0", "2.5", "\"2\"", "[2]", "2147483647"}) {
    const std::string own = config_json("layers" + std::to_string(number++), "n_layer", value);
    add(std::string(value) + " layers", own + "/config.json", {program("mica-convert"), "hf-import", own, own + "/x"});
  }
  // On several ranks as well it is one line.
  add("a folder to start from", "start/config.json", train({"--model.init_from=" + config_json("start", "n_layer", "1e999")}));
  expect_all_refused(cases);

  // A byte order mark is no mistake.
  const std::string marked = folder_ / "marked";
  fs::copy(good, marked);
  write_text(marked + "/config.json", "\xEF\xBB\xBF" + read_text(good + "/config.json"));
  EXPECT_EQ(test::run({program("mica-convert"), "hf-import", marked, marked + "-checkpoint"}).status, 0);
}

TEST_F(BadInput, InTokenFiles) {
  write_text(folder_ / "empty.bin", "");
  write_tokens(folder_ / "short.bin", 16);
  write_tokens(folder_ / "past.bin", 4000);
  overwrite_token(folder_ / "past.bin", 1234, 256);
  write_text(folder_ / "odd.h5", "this is no HDF5 file");
  const auto tokens = [&](const std::string& name) { return "--data.train=" + (folder_ / name); };
  expect_refused_in_turn({
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
  expect_refused_in_turn({
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

// All ranks fail by themselves in the same step, and none is lost: the job ends in order, after the save.
TEST_F(BadInput, AnErrorOfAllRanksLetsABackgroundSaveEnd) {
  const std::string tokens = folder_ / "large.bin";
  write_tokens(tokens, 65);
  fs::resize_file(tokens, std::uintmax_t{2} * 33'000'000);  // too many to be looked at when the file is opened
  // All of step 2; the last target of step 1 is token 64.
  for (std::int64_t position = 65; position <= 128; ++position) overwrite_token(tokens, position, 60000);
  for (const char* async : {"false", "true"}) {
    SCOPED_TRACE(std::string("checkpoint.async=") + async);
    fs::remove_all(run_folder());
    const Finished failed = test::run(train(
        {"--data.train=" + tokens, "--data.order=sequential", "--checkpoint.interval=1", std::string("--checkpoint.async=") + async}));
    expect_refused({"past the vocabulary", {}, 2, {tokens, "has id 60000", "vocab_size is 256"}}, failed);
    EXPECT_THAT(failed.output, ::testing::Not(HasSubstr("MPI_ABORT")));
    EXPECT_EQ(checkpoints_of(run_folder()), (std::vector<std::string>{"step-00000001"}));
  }
}

TEST_F(BadInput, FullDisk) {
  struct Case {
    std::string async;
    TemporaryFolder own;
    std::unique_ptr<Child> child;
  };
  std::array<Case, 2> cases{Case{"false", {}, {}}, Case{"true", {}, {}}};  // at once: a save is tried again for 20 s
  for (Case& c : cases) {
    fs::create_directories(c.own / "disk");
    // A small file system of its own: ext4 in a file if that can be mounted, else in memory.
    const std::string script = "cd '" + c.own.path() +
                               "'; "
                               "{ dd if=/dev/zero of=image bs=1k count=1500 && /sbin/mkfs.ext4 -q -F -O ^has_journal "
                               "image && mount -o loop image disk; } >/dev/null 2>&1 "
                               "|| mount -t tmpfs -o size=1500k tmpfs disk || exit 99; "
                               "\"$@\"; status=$?; cp -r disk/run kept; exit $status";
    c.child = std::make_unique<Child>(in_mount_namespace(script, train({"--run.dir=" + (c.own / "disk/run"), "--train.steps=1000",
                                                                        "--log.metrics=false", "--checkpoint.async=" + c.async})));
  }
  for (const Case& c : cases) {
    SCOPED_TRACE("checkpoint.async=" + c.async);
    const Finished full = c.child->wait(120);
    ASSERT_NE(full.status, 99) << "neither a loop mount nor a tmpfs in a user namespace is possible\n" << full.output;
    expect_refused({"full disk", {}, 3, {"No space left on device", c.own / "disk", "free"}}, full);
    // What was saved before is whole: the run goes on elsewhere.
    const std::string kept = c.own / "kept";
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
  const Finished seen = test::run(in_mount_namespace(
      "mount --bind '" + run_folder() + "' '" + run_folder() + "' && mount -o remount,bind,ro '" + run_folder() + "' || exit 99; \"$@\"",
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
    std::vector<std::string> command{
        "/bin/sh", "-c", "\"$@\" >/dev/null 2>&1; echo \"rank status $?;\"", "sh", program("mica-train"), folder_ / "good.cfg"};
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
