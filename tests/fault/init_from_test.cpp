// SPDX-License-Identifier: Apache-2.0
// A run that starts from a Hugging Face folder or from a checkpoint, by the programs as users run them.

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

using ::testing::HasSubstr;

class InitFrom : public ::testing::Test {
 protected:
  InitFrom() {
    std::ofstream tokens(folder_ / "tokens.bin", std::ios::binary);
    for (int i = 0; i < 2000; ++i) tokens.put(static_cast<char>(i * 7 % 37)).put(0);  // uint16, fewer ids than any vocabulary here
    tokens.close();
    write("gpt2", "type = gpt2\nlayers = 2\nheads = 3\nwidth = 24\nvocab_size = 61\ncontext = 17\ntie_embeddings = true\n");
    write("llama",
          "type = llama\nlayers = 2\nheads = 4\nkv_heads = 2\nhead_dim = 6\nwidth = 24\nhidden = 40\nvocab_size = 41\ncontext = 128\n"
          "tie_embeddings = true\nrms_eps = 1e-5\nrope_theta = 100\nrope_scaling = llama3\nrope_factor = 8\n"
          "rope_low_freq_factor = 1\nrope_high_freq_factor = 4\nrope_original_context = 64\n");
  }
  /// A step with a learning rate of 0 changes nothing.
  void write(const std::string& name, const std::string& model) {
    write_text(folder_ / (name + ".cfg"), "[model]\n" + model + "[data]\ntrain = " + (folder_ / "tokens.bin") +
                                              "\n[optim]\nlr = 0\n[train]\nsteps = 1\nmicro_batch = 2\nseq_len = 16\n");
  }
  [[nodiscard]] Finished train(const std::string& config, const std::string& run, const std::vector<std::string>& flags) const {
    std::vector<std::string> all = {"--run.dir=" + (folder_ / run)};
    all.insert(all.end(), flags.begin(), flags.end());
    return test::run(training(2, folder_ / (config + ".cfg"), all));
  }
  [[nodiscard]] Finished convert(const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {program("mica-convert")};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return test::run(command);
  }

  TemporaryFolder folder_;
};

TEST_F(InitFrom, AHuggingFaceFolderGoesThroughARunWithEveryBit) {
  for (const std::string name : {"gpt2", "llama"}) {
    const std::string hf = reference_path("hf_") + name;
    const Finished first = train(name, name, {"--model.init_from=" + hf});
    ASSERT_EQ(first.status, 0) << first.output;
    EXPECT_THAT(first.output, HasSubstr("parameters of Hugging Face folder " + hf));
    const Finished exported = convert({"hf-export", folder_ / name, folder_ / (name + "-hf")});
    ASSERT_EQ(exported.status, 0) << exported.output;
    EXPECT_EQ(read_text(folder_ / (name + "-hf/model.safetensors")), read_text(hf + "/model.safetensors"));
    // From that run's checkpoint, into another run.
    const Finished second = train(name, name + "-2", {"--model.init_from=" + (folder_ / name)});
    ASSERT_EQ(second.status, 0) << second.output;
    EXPECT_THAT(second.output, HasSubstr("step-00000001"));
    EXPECT_EQ(step_lines(folder_ / name), step_lines(folder_ / (name + "-2")));
    // A run that goes on has its own parameters.
    const Finished resumed = train(name, name, {"--model.init_from=/proc/nowhere", "--train.steps=2"});
    ASSERT_EQ(resumed.status, 0) << resumed.output;
    EXPECT_EQ(step_lines(folder_ / name).size(), 2u);
  }
}

// Ignored parameters are not the seed's: a checkpoint holds them, in their own type, and a run that ignores others goes on.
TEST_F(InitFrom, IgnoredParametersAreInitialisedSavedAndResumed) {
  const std::string hf = reference_path("hf_gpt2");
  const std::vector<std::string> ignore{"--model.init_from=" + hf, "--fsdp.ignore=*wpe*,*ln_f*", "--fsdp.param_dtype=bf16"};
  ASSERT_EQ(train("gpt2", "whole", ignore).status, 0);
  const auto diff = [&](const std::string& a, const std::string& b) { return test::run({program("mica-inspect"), "diff", a, b}); };
  // The ignored ones are kept in bf16; the reference's are not numbers of bf16.
  const Finished rounded = diff(folder_ / "whole", hf);
  EXPECT_EQ(rounded.status, 1) << rounded.output;
  EXPECT_THAT(rounded.output, HasSubstr("transformer.wpe.weight"));
  EXPECT_THAT(rounded.output, ::testing::Not(HasSubstr("wte")));
  std::vector<std::string> more = ignore;
  more.insert(more.end(), {"--train.steps=2"});
  const Finished resumed = train("gpt2", "whole", more);
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_EQ(step_lines(folder_ / "whole").size(), 2u);
  const Finished kept = diff(folder_ / "whole/checkpoints/step-00000001", folder_ / "whole/checkpoints/step-00000002");
  EXPECT_THAT(kept.output, ::testing::Not(HasSubstr("wpe"))) << "a learning rate of 0, and no other values than the saved";
  const Finished other = train("gpt2", "whole", {"--train.steps=3", "--fsdp.ignore=*wte*", "--fsdp.param_dtype=bf16"});
  ASSERT_EQ(other.status, 0) << other.output;
  EXPECT_THAT(other.output, HasSubstr("parameter transformer.wte.weight was fp32 and is bf16 here: its values are rounded"));
  const Finished exported = convert({"hf-export", folder_ / "whole", folder_ / "whole-hf"});
  ASSERT_EQ(exported.status, 0) << exported.output;
  EXPECT_EQ(diff(folder_ / "whole", folder_ / "whole-hf").status, 0);
}

// Also root cannot read it: without the capabilities to do so.
TEST_F(InitFrom, ATokenizerFileThatCannotBeReadIsTheUsersMistake) {
  const std::string hf = folder_ / "source";
  std::filesystem::copy(reference_path("hf_gpt2"), hf);
  write_text(hf + "/tokenizer.json", "{}\n");
  std::filesystem::permissions(hf + "/tokenizer.json", std::filesystem::perms::none);
  std::vector<std::string> command{program("mica-convert"), "hf-import", hf, folder_ / "imported"};
  if (geteuid() == 0) command.insert(command.begin(), {"setpriv", "--bounding-set=-dac_override,-dac_read_search"});
  const Finished refused = test::run(command);
  EXPECT_EQ(refused.status, 2) << refused.output;
  ASSERT_EQ(refused.error_lines().size(), 1u) << refused.output;
  EXPECT_THAT(refused.error_lines()[0], ::testing::AllOf(HasSubstr(hf + "/tokenizer.json"), HasSubstr("Permission denied")));
}

// A checkpoint of the model alone starts other runs, and is not gone on from.
TEST_F(InitFrom, AModelOnlyCheckpointIsForOtherRuns) {
  for (const std::string async : {"false", "true"}) {
    const std::string run = "alone-" + async;
    const std::vector<std::string> alone{"--checkpoint.optimizer=false", "--checkpoint.async=" + async, "--checkpoint.interval=1"};
    ASSERT_EQ(train("gpt2", run, alone).status, 0);
    const Finished shown = test::run({program("mica-inspect"), folder_ / run});
    EXPECT_THAT(shown.output, HasSubstr("none: parameters only"));
    const Finished again = train("gpt2", run, {"--train.steps=2"});
    EXPECT_EQ(again.status, 2) << again.output;
    EXPECT_THAT(again.output, HasSubstr("holds the model only"));
    EXPECT_THAT(again.output, HasSubstr("--model.init_from="));
    EXPECT_EQ(train("gpt2", run + "-2", {"--model.init_from=" + (folder_ / run)}).status, 0);
    EXPECT_EQ(step_lines(folder_ / (run + "-2")).front().loss, step_lines(folder_ / run).front().loss) << "a learning rate of 0";
  }
}

// What the user does not say of the model comes from the folder: a run needs no config file then.
TEST_F(InitFrom, TheModelsKeysComeFromTheFolder) {
  namespace fs = std::filesystem;
  for (const std::string name : {"gpt2", "llama"}) {
    SCOPED_TRACE(name);
    const std::string hf = folder_ / (name + "-source");
    fs::copy(reference_path("hf_") + name, hf);
    const std::string run = folder_ / (name + "-run");
    const auto train_alone = [&](const std::string& from, const std::string& to, int steps, const std::vector<std::string>& more = {}) {
      std::vector<std::string> command{program("mica-train"),
                                       "--model.init_from=" + from,
                                       "--data.train=" + (folder_ / "tokens.bin"),
                                       "--run.dir=" + to,
                                       "--train.seq_len=8",
                                       "--optim.lr=0",
                                       "--train.steps=" + std::to_string(steps)};
      command.insert(command.end(), more.begin(), more.end());
      return test::run(under_mpirun(2, command));
    };
    const Finished first = train_alone(hf, run, 1);
    ASSERT_EQ(first.status, 0) << first.output;
    const Finished same = test::run({program("mica-inspect"), "diff", run, hf});
    EXPECT_EQ(same.status, 0) << same.output;
    const std::string resolved = read_text(run + "/config.resolved.cfg");
    const bool is_llama = name == "llama";
    EXPECT_THAT(resolved, HasSubstr(is_llama ? "\ntype = llama\n" : "\ntype = gpt2\n"));
    EXPECT_THAT(resolved, HasSubstr(is_llama ? "\nrope_scaling = llama3\n" : "\nvocab_size = 61\n"));
    // From that run's checkpoint, which knows the model as well.
    const Finished second = train_alone(run, run + "-2", 1);
    ASSERT_EQ(second.status, 0) << second.output;
    EXPECT_EQ(step_lines(run + "-2"), step_lines(run));
    // But dropout, which is of training: the config's, whatever the folder was trained with.
    if (!is_llama) {
      ASSERT_EQ(train_alone(hf, run + "-dropout", 1, {"--model.dropout=0.25"}).status, 0);
      EXPECT_THAT(read_text(run + "-dropout/config.resolved.cfg"), HasSubstr("\ndropout = 0.25\n"));
      ASSERT_EQ(train_alone(run + "-dropout", run + "-without", 1).status, 0);
      EXPECT_THAT(read_text(run + "-without/config.resolved.cfg"), HasSubstr("\ndropout = 0\n"));
    }
    // The same command goes on, also when the folder is gone.
    fs::remove_all(hf);
    const Finished resumed = train_alone(hf, run, 2);
    ASSERT_EQ(resumed.status, 0) << resumed.output;
    EXPECT_EQ(step_lines(run).size(), 2u);
  }
}

// The tokenizer goes from the folder through runs, saves in the background and resumes, and out again when the folder is gone.
TEST_F(InitFrom, TheTokenizerGoesThroughRuns) {
  namespace fs = std::filesystem;
  const std::string hf = folder_ / "hf";
  fs::copy(reference_path("hf_gpt2"), hf);
  std::string config = read_text(hf + "/config.json");
  config.replace(config.find("\"eos_token_id\": null"), 20, "\"eos_token_id\": 60");
  write_text(hf + "/config.json", config);
  write_text(hf + "/tokenizer.json", "{\"made\": \"up\"}\n");
  write_text(hf + "/merges.txt", "a b\n");
  ASSERT_EQ(train("gpt2", "first", {"--model.init_from=" + hf}).status, 0);
  fs::remove_all(hf);
  const std::vector<std::string> in_background{"--checkpoint.async=true", "--checkpoint.interval=1"};
  std::vector<std::string> more = in_background;
  more.insert(more.end(), {"--model.init_from=" + hf, "--train.steps=3"});
  const Finished resumed = train("gpt2", "first", more);
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  more = in_background;
  more.push_back("--model.init_from=" + (folder_ / "first"));
  const Finished second = train("gpt2", "second", more);
  ASSERT_EQ(second.status, 0) << second.output;
  for (const std::string checkpoint :
       {"first/checkpoints/step-00000002", "first/checkpoints/step-00000003", "second/checkpoints/step-00000001"}) {
    SCOPED_TRACE(checkpoint);
    const std::string path = folder_ / checkpoint;
    EXPECT_EQ(test::run({program("mica-inspect"), "verify", path}).status, 0);
    fs::remove_all(folder_ / "out");
    const Finished exported = convert({"hf-export", path, folder_ / "out"});
    ASSERT_EQ(exported.status, 0) << exported.output;
    EXPECT_THAT(exported.output, HasSubstr("with the tokenizer of " + hf + ": merges.txt, tokenizer.json; eos_token_id 60\n"));
    EXPECT_EQ(read_text(folder_ / "out/tokenizer.json"), "{\"made\": \"up\"}\n");
    EXPECT_EQ(read_text(folder_ / "out/merges.txt"), "a b\n");
    for (const char* name : {"/config.json", "/generation_config.json"}) {
      EXPECT_THAT(read_text(folder_ / "out" + name), HasSubstr("\"eos_token_id\": 60")) << name;
    }
  }
  // A damaged one does not go on unnoticed.
  damage(folder_ / "first/checkpoints/step-00000003/tokenizer.json");
  const Finished refused = train("gpt2", "first", {"--train.steps=4"});
  EXPECT_EQ(refused.status, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("step-00000003/tokenizer.json"));
  EXPECT_THAT(refused.output, HasSubstr("--checkpoint.resume="));
}

TEST_F(InitFrom, TokensOfAnotherTokenizerAreWarnedOf) {
  const std::string json = reference_path("tokenizers/gpt2.tokenizer.json");
  ASSERT_EQ(train("gpt2", "base", {"--model.vocab_size=3000"}).status, 0);
  ASSERT_EQ(convert({"hf-export", folder_ / "base", folder_ / "hf"}).status, 0);
  std::filesystem::copy_file(json, folder_ / "hf/tokenizer.json");
  std::string text;
  for (int i = 0; i < 200; ++i) text += "To be, or not to be.\n";
  write_text(folder_ / "text.txt", text);
  for (const auto& [name, vocab] : {std::pair<std::string, std::string>("same", json), {"other", "bytes"}}) {
    const std::string out = folder_ / (name + ".h5");
    ASSERT_EQ(test::run({program("mica-tokenize"), "--vocab=" + vocab, "--out=" + out, folder_ / "text.txt"}).status, 0);
    const Finished seen =
        train("gpt2", name,
              {"--model.init_from=" + (folder_ / "hf"), "--model.vocab_size=3000", "--data.train=" + (folder_ / (name + ".train.h5"))});
    ASSERT_EQ(seen.status, 0) << seen.output;
    EXPECT_EQ(seen.output.find("warning: data.train was made with another tokenizer") != std::string::npos, name == "other") << seen.output;
  }
}

TEST_F(InitFrom, ALlamasContextMayDiffer) {
  for (const std::string context : {"16", "512"}) {
    const std::string run = "context-" + context;
    const Finished seen = train("llama", run, {"--model.init_from=" + reference_path("hf_llama"), "--model.context=" + context});
    ASSERT_EQ(seen.status, 0) << seen.output;
    EXPECT_THAT(read_text(folder_ / (run + "/config.resolved.cfg")), HasSubstr("\ncontext = " + context + "\n"));
  }
}

TEST_F(InitFrom, MistakesEndWithOneLineAndStatusTwo) {
  const auto expect = [](const Finished& seen, const std::string& says) {
    EXPECT_EQ(seen.status, 2) << seen.output;
    const std::vector<std::string> lines = seen.error_lines();
    ASSERT_EQ(lines.size(), 1u) << seen.output;
    EXPECT_THAT(lines[0], HasSubstr(says));
  };
  const std::string hf = "--model.init_from=" + reference_path("hf_gpt2");
  expect(train("gpt2", "a", {hf, "--model.layers=3"}), "model.layers = 3, but");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a")) << "a refused config leaves no folder";
  // Keys of another model, all of them at once, and not what they would mean in the default architecture.
  expect(train("llama", "b", {hf}), "--model.heads=3");
  expect(train("llama", "b", {hf}), "--model.type=gpt2");
  expect(train("gpt2", "b", {hf, "--model.context=16"}), "model.context = 16, but");
  expect(test::run(under_mpirun(2, {program("mica-train"), "--data.train=" + (folder_ / "tokens.bin")})), "no config file");
  expect(train("gpt2", "c", {"--model.init_from=/proc/nowhere"}), "/proc/nowhere: no such folder");
  expect(convert({"hf-import", reference_path("hf_gpt2")}), "hf-import takes HF_FOLDER CHECKPOINT");
  expect(convert({"hf-import", "/proc/nowhere", folder_ / "x"}), "/proc/nowhere/config.json: no such file");
  expect(convert({"hf-export", folder_ / "none", folder_ / "x"}), "no such folder");
}

}  // namespace
}  // namespace mica::test
