// SPDX-License-Identifier: Apache-2.0
// mica-generate as users run it: beside transformers, on several ranks, and what it refuses.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fault/support/child.hpp"
#include "fault/support/training.hpp"
#include "support/paths.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::string kFolders = reference_path("hf_");

/// Without figures, and without the warning of machines with few cores, so that only what was asked for is left.
Finished generate(const std::vector<std::string>& arguments, int ranks = 0) {
  std::vector<std::string> command = {program("mica-generate"), "--quiet"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Finished seen = run(ranks > 0 ? under_mpirun(ranks, command) : command);
  for (std::size_t at = 0; (at = seen.output.find("warning: the ", at)) != std::string::npos;) {
    seen.output.erase(at, seen.output.find('\n', at) + 1 - at);
  }
  return seen;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string joined(const Json& ids) {
  std::string text;
  for (const auto& id : ids) text += (text.empty() ? "" : ",") + std::to_string(id.get<int>());
  return text;
}

Json reference() { return Json::parse(std::ifstream(reference_path("generation.json"))); }

class Generate : public ::testing::Test {
 protected:
  /// @returns its path
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  /// All prompts of a model, as a file.
  std::string prompts_of(const Json& cases) const {
    std::string text;
    for (const Json& each : cases) text += Json{{"ids", each.at("prompt")}}.dump() + "\n";
    return write("prompts.jsonl", text);
  }

  TemporaryFolder folder_;
};

TEST_F(Generate, GreedyTextIsTransformersTokenForToken) {
  const Json models = reference();
  for (const auto& [name, cases] : models.items()) {
    for (const Json& each : cases) {
      const Finished got = generate({kFolders + name, "--prompt-ids=" + joined(each.at("prompt")), "--print-ids", "--temperature=0",
                                     "--max-new-tokens=" + std::to_string(each.at("greedy").size())});
      ASSERT_EQ(got.status, 0) << got.output;
      EXPECT_EQ(got.output, joined(each.at("greedy")) + "\n") << name;
    }
  }
}

TEST_F(Generate, APenaltyIsTransformers) {
  const Json cases = reference().at("llama");
  const Finished got = generate({kFolders + "llama", "--prompts", prompts_of(cases), "--print-ids", "--repetition-penalty=1.3",
                                 "--max-new-tokens=60", "--batch-size=2"});
  ASSERT_EQ(got.status, 0) << got.output;
  std::string want;
  for (const Json& each : cases) want += joined(each.at("penalised")) + "\n";
  EXPECT_EQ(got.output, want);
}

TEST_F(Generate, LogLikelihoodsAreTransformers) {
  const Json models = reference();
  for (const auto& [name, cases] : models.items()) {
    std::string questions;
    for (const Json& each : cases) {
      questions += Json{{"context_ids", each.at("prompt")}, {"continuation_ids", {each.at("greedy"), each.at("other")}}}.dump() + "\n";
    }
    const Finished got = generate({kFolders + name, "--choices=" + write(name + ".jsonl", questions)});
    ASSERT_EQ(got.status, 0) << got.output;
    const std::vector<std::string> lines = lines_of(got.output);
    ASSERT_THAT(lines, SizeIs(cases.size()));
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Json answer = Json::parse(lines[i]);
      EXPECT_NEAR(answer.at("log_likelihoods")[0].get<double>(), cases[i].at("greedy_log_likelihood").get<double>(), 1e-4) << name;
      EXPECT_NEAR(answer.at("log_likelihoods")[1].get<double>(), cases[i].at("other_log_likelihood").get<double>(), 1e-4) << name;
      EXPECT_EQ(answer.at("is_greedy"), Json({true, false}));
      EXPECT_EQ(answer.at("num_tokens"), Json({cases[i].at("greedy").size(), cases[i].at("other").size()}));
    }
  }
}

/// Sharded, with fewer prompts than ranks and with more: the text of one rank, drawn or not.
TEST_F(Generate, SeveralRanksWriteWhatOneWrites) {
  for (const std::string name : {"gpt2", "llama"}) {
    const std::string prompts = prompts_of(reference().at(name));
    const std::vector<std::string> flags = {kFolders + name,      "--prompts",       prompts,      "--print-ids",
                                            "--max-new-tokens=9", "--temperature=1", "--top-k=20", "--seed=4"};
    const Finished one = generate(flags);
    ASSERT_EQ(one.status, 0) << one.output;
    for (const int ranks : {2, 3}) {
      const Finished several = generate(flags, ranks);
      ASSERT_EQ(several.status, 0) << several.output;
      EXPECT_EQ(several.output, one.output) << name << " on " << ranks;
    }
    const std::vector<std::string> single = {kFolders + name, "--prompt-ids=1,2,3", "--print-ids", "--max-new-tokens=9"};
    EXPECT_EQ(generate(single, 3).output, generate(single).output);
  }
}

TEST_F(Generate, SeveralRanksRateAsOneRates) {
  const std::string questions = write("questions.jsonl",
                                      "{\"context_ids\": [1, 2, 3], \"continuation_ids\": [[4], [5, 6]]}\n"
                                      "{\"context_ids\": [7], \"continuation_ids\": [[1, 2, 3]]}\n"
                                      "{\"context_ids\": [9, 8, 7, 6], \"continuation_ids\": [[5], [4], [3, 2]]}\n");
  std::ofstream tokens(folder_ / "tokens.bin", std::ios::binary);
  for (int i = 0; i < 100; ++i) tokens.put(static_cast<char>(i * 7 % 37)).put(0);
  tokens.close();
  for (const std::string& task : {"--choices=" + questions, "--perplexity=" + (folder_ / "tokens.bin")}) {
    const std::vector<std::string> one = lines_of(generate({kFolders + "gpt2", task}).output);
    const Finished finished = generate({kFolders + "gpt2", task}, 2);
    ASSERT_EQ(finished.status, 0) << finished.output;
    const std::vector<std::string> two = lines_of(finished.output);
    ASSERT_EQ(one.size(), two.size()) << finished.output;
    for (std::size_t i = 0; i < one.size(); ++i) {
      const Json a = Json::parse(one[i]), b = Json::parse(two[i]);
      if (a.contains("perplexity")) {
        EXPECT_EQ(a.at("tokens"), 99);
        EXPECT_NEAR(a.at("nats_per_token").get<double>(), b.at("nats_per_token").get<double>(), 1e-6);
        EXPECT_NEAR(std::log(a.at("perplexity").get<double>()), a.at("nats_per_token").get<double>(), 1e-9);
        continue;
      }
      for (std::size_t c = 0; c < a.at("log_likelihoods").size(); ++c) {
        EXPECT_NEAR(a.at("log_likelihoods")[c].get<double>(), b.at("log_likelihoods")[c].get<double>(), 1e-5);
      }
      EXPECT_EQ(a.at("best"), b.at("best"));
    }
  }
}

/// Windows of 8 tokens of 17: the same as two questions.
TEST_F(Generate, ASmallerContextThanTheModels) {
  std::ofstream tokens(folder_ / "tokens.bin", std::ios::binary);
  Json first{{"context_ids", {0}}}, second{{"context_ids", {8 * 7 % 37}}};
  for (int i = 0; i < 17; ++i) {
    const int id = i * 7 % 37;
    tokens.put(static_cast<char>(id)).put(0);
    if (i > 0) (i <= 8 ? first : second)["continuation_ids"][0].push_back(id);
  }
  tokens.close();
  const std::string perplexity = "--perplexity=" + (folder_ / "tokens.bin");
  const auto nats = [&](const std::string& context) {
    const Finished got = generate({kFolders + "gpt2", perplexity, "--context=" + context});
    EXPECT_EQ(got.status, 0) << got.output;
    const Json rated = Json::parse(got.output);
    EXPECT_EQ(rated.at("tokens"), 16);
    return 16 * rated.at("nats_per_token").get<double>();
  };
  const std::vector<std::string> answers =
      lines_of(generate({kFolders + "gpt2", "--choices=" + write("windows.jsonl", first.dump() + "\n" + second.dump() + "\n")}).output);
  ASSERT_THAT(answers, SizeIs(2));
  double sum = 0;
  for (const std::string& each : answers) sum -= Json::parse(each).at("log_likelihoods")[0].get<double>();
  EXPECT_NEAR(nats("8"), sum, 1e-4);
  EXPECT_EQ(nats("17"), nats("0"));
  EXPECT_GT(std::abs(nats("0") - sum), 1e-3) << "as long as the model's, which is 17";
  const Finished refused = generate({kFolders + "gpt2", perplexity, "--context=18"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.output, HasSubstr("--context is 18, but the model's context is 17 tokens"));
  EXPECT_THAT(generate({kFolders + "gpt2", "--prompt-ids=1,2,3,4", "--print-ids", "--context=4"}).output,
              HasSubstr("the prompt has 4 tokens, which leave no room in the context of 4"));
}

/// A run of bytes: its newest checkpoint writes text, in whole characters, in bf16 too.
TEST_F(Generate, ARunWritesText) {
  const std::string text = write("text.txt", [] {
    std::string all;
    for (int i = 0; i < 400; ++i) all += "ab ä€ ";
    return all;
  }());
  ASSERT_EQ(run({program("mica-tokenize"), "--out=" + (folder_ / "text.h5"), "--val-fraction=0", text}).status, 0);
  const std::string config = write("tiny.cfg",
                                   "[model]\ntype = gpt2\nlayers = 1\nheads = 2\nwidth = 16\nvocab_size = 256\ncontext = 32\n[data]\n"
                                   "train = " +
                                       (folder_ / "text.train.h5") + "\n[train]\nsteps = 2\nseq_len = 16\n");
  ASSERT_EQ(run(training(1, config, {"--run.dir=" + (folder_ / "run")})).status, 0);
  for (const std::string dtype : {"fp32", "bf16"}) {
    const Finished got = generate({folder_ / "run", "--prompt=ab", "--max-new-tokens=20", "--temperature=2", "--dtype=" + dtype});
    ASSERT_EQ(got.status, 0) << got.output;
    EXPECT_TRUE(got.output.ends_with("\n"));
    EXPECT_NO_THROW((void)Json(got.output).dump()) << "valid UTF-8";
  }
  const Finished lines = generate({folder_ / "run", "--prompts=" + write("prompts.txt", "ab\n\nä\n"), "--max-new-tokens=5"});
  ASSERT_THAT(lines_of(lines.output), SizeIs(2)) << lines.output;
  EXPECT_THAT(Json::parse(lines_of(lines.output)[1]).at("ids"), SizeIs(5));
  const Finished rated = generate({folder_ / "run", "--perplexity=" + text});
  EXPECT_EQ(Json::parse(rated.output).at("bytes"), 400 * 9 - 1) << "of what is predicted\n" << rated.output;
  const Finished two = generate({folder_ / "run", "--perplexity=" + write("two.txt", "ab")});
  ASSERT_EQ(two.status, 0) << two.output;
  const Json one_byte = Json::parse(two.output);
  EXPECT_EQ(one_byte.at("tokens"), 1);
  EXPECT_EQ(one_byte.at("bytes"), 1);
  EXPECT_NEAR(one_byte.at("bits_per_byte").get<double>(), one_byte.at("nats_per_token").get<double>() / std::log(2.0), 1e-9);

  // Ids of another tokenizer that happen to fit.
  ASSERT_EQ(run(training(1, config, {"--run.dir=" + (folder_ / "larger"), "--model.vocab_size=4096"})).status, 0);
  const Finished other = generate(
      {folder_ / "larger", "--vocab=" + reference_path("tokenizers/llama3.tokenizer.json"), "--perplexity=" + (folder_ / "text.train.h5")});
  EXPECT_EQ(other.status, 2) << other.output;
  EXPECT_THAT(other.output, HasSubstr("its tokens are those of 'bytes', the model's those of 'llama3.tokenizer.json'"));
  EXPECT_EQ(generate({folder_ / "larger", "--vocab=bytes", "--perplexity=" + (folder_ / "text.train.h5")}).status, 0);

  // "the" is one token.
  const Finished merged = generate({folder_ / "larger", "--vocab=" + reference_path("tokenizers/llama3.tokenizer.json"),
                                    "--choices=" + write("merged.jsonl", R"({"context": "th", "continuations": ["e"]})")});
  EXPECT_EQ(merged.status, 2) << merged.output;
  EXPECT_THAT(merged.output, HasSubstr("merged.jsonl:1: the continuation \"e\" is one token with the end of the context"));
}

/// SentencePiece models do not say that a text begins with their <s>; transformers adds it.
TEST_F(Generate, ASentencePieceModelsTextBeginsWithBos) {
  const std::string model = reference_path("tokenizers/llama_bpe.model");
  std::filesystem::create_directory(folder_ / "tokenizer");
  std::filesystem::copy_file(model, folder_ / "tokenizer/tokenizer.model");
  write("tokenizer/generation_config.json", R"({"bos_token_id": 1, "eos_token_id": 2})");
  const std::string text = write("text.txt", [] {
    std::string all;
    for (int i = 0; i < 100; ++i) all += "a\nb\n\n";
    return all;
  }());
  ASSERT_EQ(run({program("mica-tokenize"), "--vocab=" + model, "--out=" + (folder_ / "text.h5"), "--val-fraction=0", text}).status, 0);
  const std::string config = write("tiny.cfg",
                                   "[model]\ntype = llama\nlayers = 1\nheads = 2\nwidth = 16\nvocab_size = 1500\ncontext = 32\n[data]\n"
                                   "train = " +
                                       (folder_ / "text.train.h5") + "\n[train]\nsteps = 2\nseq_len = 16\n");
  ASSERT_EQ(run(training(1, config, {"--run.dir=" + (folder_ / "run")})).status, 0);
  ASSERT_EQ(run({program("mica-convert"), "hf-export", folder_ / "run", folder_ / "hf", "--tokenizer=" + (folder_ / "tokenizer")}).status,
            0);

  const auto rated = [&](const std::string& question) {
    const Finished got = generate({folder_ / "hf", "--choices=" + write("question.jsonl", question)});
    EXPECT_EQ(got.status, 0) << got.output;
    return got.output;
  };
  const auto rated_ids = [&](const std::string& context, const std::string& continuation) {
    return rated(R"({"context_ids": [)" + context + R"(], "continuation_ids": [[)" + continuation + "]]}");
  };
  const std::string after_text = R"({"context": "🎉", "continuations": ["\n"]})";
  const std::string alone = R"({"context": "", "continuations": ["\n\n\n"]})";
  const std::string ids = "1430, 243, 162, 145, 140";  // of the first text
  EXPECT_EQ(rated(after_text), rated_ids("1, " + ids, "13"));
  EXPECT_EQ(rated(alone), rated_ids("1", "1430, 13, 13, 13"));
  EXPECT_NE(rated_ids("1, " + ids, "13"), rated_ids(ids, "13"));
  EXPECT_EQ(generate({folder_ / "hf", "--perplexity=" + text}).status, 0);

  write("hf/tokenizer_config.json", R"({"add_bos_token": false})");
  EXPECT_EQ(rated(after_text), rated_ids(ids, "13"));
  EXPECT_EQ(rated(alone), rated_ids("2", "1430, 13, 13, 13"));

  write("hf/tokenizer_config.json", "{}");
  const std::string model_config = read_text(folder_ / "hf/config.json"), bos = "\"bos_token_id\": 1";
  ASSERT_NE(model_config.find(bos), std::string::npos) << model_config;
  write("hf/config.json", std::string(model_config).replace(model_config.find(bos), bos.size(), "\"bos_token_id\": 5000"));
  const Finished outside = generate({folder_ / "hf", "--perplexity=" + text});
  EXPECT_EQ(outside.status, 2) << outside.output;
  EXPECT_THAT(outside.output, HasSubstr("token id 5000 is not in the model's vocabulary, 0 to 1499"));
}

TEST_F(Generate, AFoldersNameMayBeInAnyEncoding) {
  const std::string folder = folder_ / "mod\xe8le";
  std::filesystem::copy(kFolders + "gpt2", folder);
  for (const int ranks : {1, 2}) {
    const Finished got = generate({folder, "--prompt-ids=1", "--print-ids", "--max-new-tokens=2"}, ranks);
    EXPECT_EQ(got.status, 0) << got.output;
    EXPECT_EQ(got.output, generate({kFolders + "gpt2", "--prompt-ids=1", "--print-ids", "--max-new-tokens=2"}).output);
  }
}

/// Not silently, nor with --quiet.
TEST_F(Generate, ATextThatFillsTheContextIsTold) {
  const auto said = [](const std::vector<std::string>& flags) {
    std::vector<std::string> command{program("mica-generate"), kFolders + "gpt2", "--prompt-ids=1,2,3,4,5", "--print-ids", "--ignore-end"};
    command.insert(command.end(), flags.begin(), flags.end());
    const Finished got = run(command);
    EXPECT_EQ(got.status, 0) << got.output;
    return got.output;
  };
  EXPECT_THAT(said({"--max-new-tokens=13", "--quiet"}),
              HasSubstr("the context of 17 tokens, prompt included, was full before --max-new-tokens=13: 1 of 1 texts end there"));
  const std::string fits = said({"--max-new-tokens=12"});
  EXPECT_THAT(fits, ::testing::Not(HasSubstr("context of")));
  EXPECT_THAT(fits, HasSubstr("; text 12 tokens, those after the first in "));
}

TEST_F(Generate, AFullDiskIsToldOnce) {
  const std::string to_full_disk = "exec \"$0\" \"$1\" --prompt-ids=1 --print-ids --quiet --max-new-tokens=2 > /dev/full";
  const Finished got = run({"/bin/bash", "-c", to_full_disk, program("mica-generate"), kFolders + "gpt2"});
  EXPECT_EQ(got.status, 3);
  EXPECT_THAT(got.error_lines(), SizeIs(1)) << got.output;
}

/// One line, status 2, on one rank and on several.
TEST_F(Generate, MistakesAreTold) {
  const std::string gpt2 = kFolders + "gpt2", empty = write("empty.txt", ""), bad = write("bad.jsonl", "{\"context\": 5}\n"),
                    text = write("text.jsonl", "{\"context\": \"a\", \"continuations\": [\"b\"]}\n");
  struct Mistake {
    std::vector<std::string> arguments;
    std::string text;
  };
  const std::vector<Mistake> mistakes{
      {{}, "nothing to do"},
      {{gpt2}, "nothing to do"},
      {{"--prompt-ids=1"}, "no model"},
      {{gpt2, "--prompt-ids=1", "--prompt=a"}, "exclude each other"},
      {{gpt2, gpt2, "--prompt-ids=1"}, "two models"},
      {{gpt2, "--prompt-ids=1", "--tempreature=1"}, "--tempreature"},
      {{gpt2, "--prompt-ids=1", "--print-ids", "--temperature=-1"}, "--temperature is -1"},
      {{gpt2, "--prompt-ids=1", "--print-ids", "--top-p=0"}, "--top-p is 0"},
      {{gpt2, "--prompt-ids=1", "--print-ids", "--top-k=5"}, "set --temperature, too"},
      {{gpt2, "--prompt-ids=1", "--print-ids", "--top-p=0.9"}, "set --temperature, too"},
      {{gpt2, "--prompt-ids=1", "--print-ids", "--max-new-tokens=0"}, "--max-new-tokens is 0"},
      {{gpt2, "--prompt-ids=1", "--print-ids", "--dtype=int8"}, "--dtype is 'int8'"},
      {{gpt2, "--prompt-ids=1,x", "--print-ids"}, "'x' is not a token id"},
      {{gpt2, "--prompt-ids=5,61", "--print-ids"}, "token id 61 is not in the model's vocabulary, 0 to 60"},
      {{gpt2, "--prompt-ids=1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "--print-ids"}, "has 17 tokens, which leave no room in the context of 17"},
      {{gpt2, "--prompt-ids=1"}, "has no tokenizer"},
      {{gpt2, "--prompt=text", "--print-ids"}, "has no tokenizer"},
      {{gpt2, "--prompt=", "--print-ids"}, "has no tokenizer"},
      {{gpt2, "--vocab=bytes", "--prompt=text"}, "256 ids, but the model"},
      {{gpt2, "--prompts=" + (folder_ / "none.jsonl"), "--print-ids"}, "no such file"},
      {{gpt2, "--prompts=" + empty, "--print-ids"}, "has no tokenizer"},
      {{gpt2, "--choices=" + empty}, "the file is empty"},
      {{gpt2, "--choices=" + bad}, "bad.jsonl:1"},
      {{gpt2, "--choices=" + text}, "text.jsonl:1: this needs a tokenizer: " + gpt2 + " has no tokenizer"},
      {{gpt2, "--perplexity=" + folder_.path()}, "has no tokenizer"},
      {{folder_.path(), "--prompt-ids=1", "--print-ids"}, folder_.path()},
      {{folder_ / "nowhere", "--prompt-ids=1", "--print-ids"}, "nowhere"},
  };
  for (const Mistake& mistake : mistakes) {
    const Finished got = generate(mistake.arguments);
    EXPECT_EQ(got.status, 2) << got.output;
    EXPECT_THAT(got.error_lines(), SizeIs(1)) << got.output;
    EXPECT_THAT(got.output, HasSubstr(mistake.text));
  }
  const Finished on_two = generate({gpt2, "--prompt-ids=5,61", "--print-ids"}, 2);
  EXPECT_THAT(on_two.error_lines(), SizeIs(1)) << on_two.output;
  EXPECT_THAT(on_two.output, HasSubstr("token id 61"));
}

}  // namespace
}  // namespace mica::test
