// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/diff.hpp"
#include "mica/checkpoint/inspect.hpp"
#include "mica/core/half.hpp"

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/convert_testing.hpp"
#include "unit/checkpoint/hf_testing.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::convert;
using test::convert_error;
using test::HfFolder;
using test::TemporaryFolder;
using test::tensors_of_folder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

TEST(HfExport, F2_GivesBackEveryBitOnWhateverRanksTheCheckpointWasSaved) {
  const TemporaryFolder folder;
  for (const char* name : {"gpt2", "gpt2_untied"}) {
    for (const int ranks : {1, 3}) {
      const std::string run = folder / fmt::format("{}-{}", name, ranks);
      test::save_hf_model(test::hf_reference(name), ranks, run);
      const std::string out = convert({"hf-export", run, run + "-hf/"});
      EXPECT_THAT(out, AllOf(HasSubstr("wrote gpt2 with"), HasSubstr("in 1 file")));
      EXPECT_EQ(tensors_of_folder(run + "-hf"), tensors_of_folder(test::hf_reference(name)));
      EXPECT_EQ(read_hf_model(run + "-hf").keys.all(), read_hf_model(test::hf_reference(name)).keys.all());
      EXPECT_FALSE(fs::exists(run + "-hf.tmp"));
    }
  }
  // One file is, byte by byte, what transformers wrote.
  EXPECT_EQ(io::read_file(folder / "gpt2-1-hf/model.safetensors"), io::read_file(test::hf_reference("gpt2") + "/model.safetensors"));
}

// mica-inspect diff: parameters under Mica's names, whatever the orientation and the side.
TEST(HfExport, ADiffTellsWhetherTheFolderHoldsTheCheckpoint) {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  test::save_hf_model(test::hf_reference("gpt2"), 3, run);
  EXPECT_TRUE(diff(run, test::hf_reference("gpt2")).is_equal());
  EXPECT_TRUE(diff(test::hf_reference("gpt2"), run).is_equal());
  (void)convert({"hf-export", run, folder / "bf16", "--dtype=bf16"});
  const DiffReport report = diff(run, folder / "bf16");
  EXPECT_FALSE(report.is_equal());
  const auto weight = std::ranges::find(report.entries, "transformer.h.1.mlp.c_fc.weight", &DiffEntry::parameter);
  ASSERT_NE(weight, report.entries.end());
  EXPECT_EQ(weight->kind, kMasterKind);
  EXPECT_GT(weight->num_different, weight->shape_a.numel() / 2);
  EXPECT_LT(weight->max_difference, 0.01);
  EXPECT_EQ(diff(run, test::hf_reference("gpt2_untied")).entries.back().result, DiffEntry::Result::only_in_b);
}

TEST(HfExport, SplitsIntoFilesOfAGivenSize) {
  const TemporaryFolder folder;
  const std::string checkpoint = test::save_hf_model(test::hf_reference("gpt2_untied"), 1, folder / "run");
  EXPECT_THAT(convert({"hf-export", checkpoint, folder / "out", "--max-shard=9KB"}), HasSubstr("27.36 kB in 4 files"));
  EXPECT_EQ(tensors_of_folder(folder / "out"), tensors_of_folder(test::hf_reference("gpt2_untied")));
  const auto index = nlohmann::json::parse(io::read_file(folder / "out/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 27360);  // 6840 parameters
  std::map<std::string, std::int64_t> bytes;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const io::SafetensorsFile opened(folder / "out/" + file.get<std::string>());
    ASSERT_NE(opened.find(name), nullptr) << name;
    bytes[file] += opened.find(name)->bytes;
  }
  ASSERT_EQ(bytes.size(), 4U);
  for (const auto& [file, size] : bytes) EXPECT_LE(size, 9000) << file;
  EXPECT_TRUE(bytes.contains("model-00004-of-00004.safetensors"));
  // The folder reads back as a whole; a tensor larger than the limit has a file of its own.
  EXPECT_NO_THROW(HfSource(folder / "out"));
  EXPECT_THAT(convert({"hf-export", checkpoint, folder / "tiny", "--max-shard=1"}), HasSubstr("17 tensors, 27.36 kB in 17 files"));
  EXPECT_NO_THROW(HfSource(folder / "tiny"));
}

// checksums.crc32c names every other file of the folder.
TEST(HfExport, IsVerifiedByItsChecksums) {
  const TemporaryFolder folder;
  const std::string checkpoint = test::save_hf_model(test::hf_reference("gpt2_untied"), 1, folder / "run");
  (void)convert({"hf-export", checkpoint, folder / "out", "--max-shard=9KB"});
  const auto verify_out = [&] {
    std::ostringstream text;
    const ExitCode code = run_inspect({"verify", folder / "out"}, text, nullptr);
    return std::pair(code, text.str());
  };
  EXPECT_EQ(verify_out().first, ExitCode::done) << verify_out().second;
  int num_files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / "out")) {
    if (entry.path().filename() == "checksums.crc32c") continue;
    ++num_files;
    const std::string sound = io::read_file(entry.path());
    std::string damaged = sound;
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 2);
    io::write_file_atomically(entry.path(), damaged);
    EXPECT_EQ(verify_out().first, ExitCode::differs);
    EXPECT_THAT(verify_out().second, HasSubstr(entry.path().string() + ": is damaged"));
    io::write_file_atomically(entry.path(), sound);
  }
  EXPECT_EQ(num_files, 6);  // four files of tensors, their index, config.json
  // A list that was cut off at the end of a line names what it lacks.
  const std::string list = io::read_file(folder / "out/checksums.crc32c");
  int num_cuts = 0;
  for (std::size_t end = 0; end < list.size(); end = list.find('\n', end) + 1) {
    io::write_file_atomically(folder / "out/checksums.crc32c", list.substr(0, end));
    EXPECT_EQ(verify_out().first, ExitCode::differs) << list.substr(0, end);
    EXPECT_THAT(verify_out().second, HasSubstr(end == 0 ? "lists no files" : "out/config.json: has no line in"));
    ++num_cuts;
  }
  EXPECT_EQ(num_cuts, 6);
  io::write_file_atomically(folder / "out/checksums.crc32c", list);
  fs::remove(folder / "out/config.json");
  EXPECT_THAT(verify_out().second, AllOf(HasSubstr("out/config.json"), HasSubstr("DAMAGED in 1 place")));
}

TEST(HfExport, F2_SmallPanelsGiveTheSameFile) {
  const TemporaryFolder folder;
  const std::string checkpoint = test::save_hf_model(test::hf_reference("gpt2"), 2, folder / "run");
  for (const std::int64_t panel : {1, 100, 24 * 95}) {
    ConvertOptions options;
    options.panel_numel = panel;
    std::int64_t last = 0;
    options.progress = [&](std::int64_t done, std::int64_t total) {
      EXPECT_GT(done, last);
      EXPECT_EQ(total, 16368);
      last = done;
    };
    const std::string out = folder / fmt::format("panel-{}", panel);
    const ConvertReport report = hf_export(checkpoint, out, {}, options);
    EXPECT_EQ(report.numel, 16368);
    EXPECT_EQ(last, report.numel);
    EXPECT_EQ(io::read_file(out + "/model.safetensors"), io::read_file(test::hf_reference("gpt2") + "/model.safetensors"));
  }
}

TEST(HfExport, RoundsToTheChosenDtype) {
  const TemporaryFolder folder;
  const std::string checkpoint = test::save_hf_model(test::hf_reference("gpt2"), 2, folder / "run");
  const test::TensorValues original = tensors_of_folder(test::hf_reference("gpt2"));
  for (const std::string dtype : {"bf16", "fp16"}) {
    EXPECT_THAT(convert({"hf-export", checkpoint, folder / dtype, "--dtype=" + dtype}), HasSubstr("32.74 kB in 1 file"));
    const test::TensorValues rounded = tensors_of_folder(folder / dtype);
    ASSERT_EQ(rounded.size(), original.size());
    for (const auto& [name, values] : original) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float expected = dtype == "bf16" ? static_cast<float>(bf16(values[i])) : static_cast<float>(f16(values[i]));
        ASSERT_EQ(rounded.at(name)[i], expected) << name << " " << i;
      }
    }
    EXPECT_EQ(nlohmann::json::parse(io::read_file(folder / dtype + "/config.json"))["torch_dtype"],
              dtype == "bf16" ? "bfloat16" : "float16");
  }
}

TEST(HfExport, ANumberPastFp16IsAnErrorAndNothingIsLeft) {
  const TemporaryFolder folder;
  HfFolder hf = HfFolder::reference("gpt2");
  hf.tensors["transformer.h.1.ln_1.bias"].values[5] = -65520;
  hf.write(folder / "hf");
  const std::string checkpoint = test::save_hf_model(folder / "hf", 1, folder / "run");
  EXPECT_THAT(convert_error({"hf-export", checkpoint, folder / "out", "--dtype=fp16"}),
              HasSubstr("element 5 of transformer.h.1.ln_1.bias is -65520, outside fp16's range: use --dtype=bf16 or fp32"));
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_FALSE(fs::exists(folder / "out.tmp"));
  convert({"hf-export", checkpoint, folder / "out", "--dtype=bf16"});
}

TEST(HfExport, AModelThatHasDivergedIsWrittenWithAWarning) {
  const TemporaryFolder folder;
  HfFolder hf = HfFolder::reference("gpt2");
  EXPECT_THAT(convert({"hf-export", test::save_hf_model(test::hf_reference("gpt2"), 2, folder / "good"), folder / "good-hf"}),
              Not(HasSubstr("warning")));
  hf.tensors["transformer.h.1.ln_1.bias"].values[5] = std::numeric_limits<float>::quiet_NaN();
  hf.tensors["transformer.h.0.attn.c_attn.weight"].values[7] = -std::numeric_limits<float>::infinity();
  hf.write(folder / "hf");
  EXPECT_THAT(convert({"hf-export", test::save_hf_model(folder / "hf", 2, folder / "run"), folder / "out"}),
              HasSubstr("warning: 2 of its values are NaN or infinite: the training had diverged."));
}

TEST(HfExport, AWidthThatHeadsDoNotDivideIsWrittenWithAWarning) {
  const TemporaryFolder folder;
  HfFolder hf = HfFolder::reference("llama");
  hf.config["num_attention_heads"] = hf.config["num_key_value_heads"] = 5;  // of 6, beside a width of 24
  for (auto& [name, tensor] : hf.tensors) {
    if (name.find("self_attn") == std::string::npos) continue;
    tensor.dims = name.ends_with("o_proj.weight") ? std::vector<std::int64_t>{24, 30} : std::vector<std::int64_t>{30, 24};
    tensor.values.resize(24 * 30);
  }
  hf.write(folder / "hf");
  EXPECT_THAT(convert({"hf-export", test::save_hf_model(folder / "hf", 2, folder / "run"), folder / "out", "--dry-run"}),
              HasSubstr("warning: transformers 5 refuses to load it: its width 24 is not a multiple of its 5 heads"));
}

TEST(HfExport, ADryRunChecksAndWritesNothing) {
  const TemporaryFolder folder;
  const std::string checkpoint = test::save_hf_model(test::hf_reference("gpt2"), 1, folder / "run");
  EXPECT_THAT(convert({"hf-export", checkpoint, folder / "out", "--dry-run", "--max-shard=40KB"}),
              HasSubstr("would write gpt2 with 16,368 parameters as fp32: 28 tensors, 65.47 kB in 2 files"));
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_FALSE(fs::exists(folder / "out.tmp"));
}

TEST(HfExport, NothingIsOverwritten) {
  const TemporaryFolder folder;
  const std::string checkpoint = test::save_hf_model(test::hf_reference("gpt2"), 1, folder / "run");
  fs::create_directory(folder / "there");
  fs::create_directory(folder / "killed.tmp");
  for (const bool dry : {false, true}) {
    const auto error_for = [&](const std::string& out) {
      std::vector<std::string> arguments = {"hf-export", checkpoint, folder / out};
      if (dry) arguments.emplace_back("--dry-run");
      return convert_error(arguments);
    };
    EXPECT_THAT(error_for("there"), HasSubstr("exists already; nothing is overwritten"));
    EXPECT_THAT(error_for("killed"), HasSubstr("killed.tmp: exists already"));
    EXPECT_THAT(error_for("no/out"), HasSubstr("there is no folder"));
  }
  EXPECT_TRUE(fs::is_empty(folder / "there"));
}

TEST(HfExport, CheckpointsWithoutACounterpartAreRefused) {
  const TemporaryFolder folder;
  test::with_one_rank(test::small_units(), [&](test::SavedModel& model) { model.save(folder / "run", 1); });
  EXPECT_THAT(convert_error({"hf-export", folder / "run", folder / "out"}),
              HasSubstr("a model of type 'weights' has no counterpart in Hugging Face's transformers; those with one: gpt2, llama"));
  EXPECT_THAT(convert_error({"hf-export", folder / "missing", folder / "out"}), HasSubstr("no such folder"));
}

// A flipped byte never becomes a weight.
TEST(HfExport, ADamagedCheckpointIsRefused) {
  const TemporaryFolder folder;
  const std::string checkpoint = test::save_hf_model(test::hf_reference("gpt2"), 1, folder / "run");
  const Manifest manifest = read_manifest(checkpoint);
  const DatasetEntry& dataset = manifest.files[0].datasets[1];
  io::RawFile raw = io::RawFile::open_for_writing(checkpoint + "/" + manifest.files[0].name);
  std::uint8_t byte = 0;
  raw.read_at(dataset.offset + 100, &byte, 1);
  byte ^= 1;
  raw.write_at(dataset.offset + 100, &byte, 1);
  raw.close();
  EXPECT_THAT(convert_error({"hf-export", checkpoint, folder / "out"}), AllOf(HasSubstr(manifest.files[0].name), HasSubstr(dataset.path)));
  EXPECT_FALSE(fs::exists(folder / "out"));
}

// A checkpoint knows no tokenizer: it is said, and one can be taken along.
TEST(HfExport, ATokenizerAndItsSpecialTokensGoAlongOrAreMissedAloud) {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  test::save_hf_model(test::hf_reference("llama"), 2, run);
  EXPECT_THAT(convert({"hf-export", run, folder / "without"}), HasSubstr("without a tokenizer and its special token ids"));
  const std::string source = folder / "source";
  fs::create_directory(source);
  const auto write = [&](const std::string& name, const std::string& text) { io::write_file_atomically(source + "/" + name, text); };
  write("config.json", R"({"model_type": "llama", "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": null, "vocab_size": 41})");
  EXPECT_THAT(convert_error({"hf-export", run, folder / "out", "--tokenizer=" + source}),
              AllOf(HasSubstr(source), HasSubstr("no tokenizer.json")));
  EXPECT_FALSE(fs::exists(folder / "out"));
  write("tokenizer.json", "{\"a\": 1}");
  write("tokenizer_config.json", "{}");
  EXPECT_THAT(convert({"hf-export", run, folder / "out", "--tokenizer=" + source}),
              AllOf(HasSubstr("tokenizer.json, tokenizer_config.json"), ::testing::Not(HasSubstr("without"))));
  EXPECT_EQ(io::read_file(folder / "out/tokenizer.json"), "{\"a\": 1}");
  EXPECT_EQ(io::read_file(folder / "out/tokenizer_config.json"), "{}");
  const Json config = Json::parse(io::read_file(folder / "out/config.json"));
  EXPECT_EQ(config["bos_token_id"], 1);
  EXPECT_EQ(config["eos_token_id"], Json({2, 3}));
  EXPECT_TRUE(config["pad_token_id"].is_null());
  EXPECT_EQ(config["vocab_size"], 41);
  const Json generation = Json::parse(io::read_file(folder / "out/generation_config.json"));
  EXPECT_EQ(generation["eos_token_id"], Json({2, 3}));
  EXPECT_FALSE(generation.contains("pad_token_id"));
  EXPECT_EQ(tensors_of_folder(folder / "out"), tensors_of_folder(test::hf_reference("llama")));
}

/// Saves a GPT-2 with so many ids and no tokenizer, as a run from scratch does. @returns the run
std::string save_gpt2(const TemporaryFolder& folder, std::int64_t vocab_size) {
  HfFolder hf = HfFolder::reference("gpt2");
  hf.config["vocab_size"] = vocab_size;
  HfFolder::Tensor& embedding = hf.tensors.at("transformer.wte.weight");
  embedding.dims[0] = vocab_size;
  embedding.values.resize(static_cast<std::size_t>(vocab_size * embedding.dims[1]));
  hf.write(folder / fmt::format("hf-{}", vocab_size));
  const std::string run = folder / fmt::format("run-{}", vocab_size);
  test::save_hf_model(folder / fmt::format("hf-{}", vocab_size), 1, run);
  return run;
}

/// The special token ids that a folder's config.json has; expects that generation_config.json has the same.
std::map<std::string, Json> exported_ids(const std::string& folder) {
  const Json config = Json::parse(io::read_file(folder + "/config.json"));
  std::map<std::string, Json> ids;
  for (const std::string key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.contains(key) && !config[key].is_null()) ids[key] = config[key];
  }
  EXPECT_EQ(fs::exists(folder + "/generation_config.json"), !ids.empty());
  if (ids.empty()) return ids;
  const Json generation = Json::parse(io::read_file(folder + "/generation_config.json"));
  for (const auto& [key, id] : ids) EXPECT_EQ(generation.at(key), id) << key;
  return ids;
}

// 50256 ends a text of GPT-2's vocabulary, and is a word of a larger one.
TEST(HfExport, WithoutATokenizerOnlyAVocabularyOfGpt2sSizeHasItsEndToken) {
  const TemporaryFolder folder;
  const std::map<std::int64_t, bool> cases{{50256, false}, {50257, true}, {50304, true}, {60000, false}};
  for (const auto& [vocab_size, is_gpt2s] : cases) {
    SCOPED_TRACE(vocab_size);
    const std::string out = folder / fmt::format("out-{}", vocab_size);
    const std::string said = convert({"hf-export", save_gpt2(folder, vocab_size), out});
    std::map<std::string, Json> expected;
    if (is_gpt2s) expected = {{"bos_token_id", 50256}, {"eos_token_id", 50256}};
    EXPECT_EQ(exported_ids(out), expected);
    EXPECT_THAT(said, HasSubstr(is_gpt2s ? "HF_FOLDER; with GPT-2's bos_token_id 50256; eos_token_id 50256\n"
                                         : "without a tokenizer and its special token ids"));
    const char* warning = "warning: its vocabulary of 60000 ids is not GPT-2's (50257, padded to 50304 at most)";
    EXPECT_EQ(said.find(warning) != std::string::npos, vocab_size == 60000) << said;
  }
}

// What tokenizer.save_pretrained() writes has no config.json.
TEST(HfExport, ATokenizerWithoutAConfigTellsItsSpecialTokensItself) {
  const TemporaryFolder folder;
  const std::string run = save_gpt2(folder, 60000);
  const std::string source = folder / "saved";
  fs::create_directory(source);
  const auto write = [&](const std::string& name, const std::string& text) { io::write_file_atomically(source + "/" + name, text); };
  const auto ids_with = [&](const std::string& said) {
    fs::remove_all(folder / "out");
    EXPECT_THAT(convert({"hf-export", run, folder / "out", "--tokenizer=" + source}), HasSubstr(said));
    return exported_ids(folder / "out");
  };
  using Ids = std::map<std::string, Json>;
  write("tokenizer.json",
        R"({"added_tokens": [{"id": 59999, "content": "<end>"}, {"id": 3, "content": "<pad>"}, {"id": 4, "content": "x"}]})");
  EXPECT_EQ(ids_with("warning: no file of " + source + " tells its eos_token_id"), Ids());
  write("tokenizer_config.json", R"({"bos_token": null, "eos_token": "<end>", "model_max_length": 1000000000000000019884624838656})");
  write("special_tokens_map.json", R"({"eos_token": "x", "pad_token": {"content": "<pad>", "lstrip": false}})");
  EXPECT_EQ(ids_with("; eos_token_id 59999; pad_token_id 3\n"), (Ids{{"eos_token_id", 59999}, {"pad_token_id", 3}}));
  write("config.json", "{}");
  EXPECT_EQ(ids_with("; eos_token_id 59999; pad_token_id 3\n"), (Ids{{"eos_token_id", 59999}, {"pad_token_id", 3}}));
  write("config.json", R"({"bos_token_id": null, "eos_token_id": null})");  // as Mica exports a model without a tokenizer
  EXPECT_EQ(ids_with("; eos_token_id 59999; pad_token_id 3\n"), (Ids{{"eos_token_id", 59999}, {"pad_token_id", 3}}));
  write("config.json", R"({"eos_token_id": 7})");
  EXPECT_EQ(ids_with("; eos_token_id 7\n"), (Ids{{"eos_token_id", 7}}));
  fs::remove(source + "/config.json");
  write("special_tokens_map.json", "{}");
  write("generation_config.json", R"({"eos_token_id": [7, 8]})");
  EXPECT_EQ(ids_with("; eos_token_id 7, 8\n"), (Ids{{"eos_token_id", Json({7, 8})}}));
  // Nothing but the vocabulary: what mica-tokenize puts around documents.
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "generation_config.json"}) fs::remove(source + "/" + name);
  write("tokenizer.json", io::read_file(test::reference_path("tokenizers/llama3.tokenizer.json")));
  EXPECT_EQ(ids_with("; bos_token_id 3000; eos_token_id 3001\n"), (Ids{{"bos_token_id", 3000}, {"eos_token_id", 3001}}));

  // What tokenizers without a tokenizer.json save: GPT-2's, with a vocab.json, and Llama's, with a tokenizer.model.
  fs::remove(source + "/tokenizer.json");
  write("tokenizer_config.json", R"({"eos_token": "<end>", "pad_token": "<pad>"})");
  write("vocab.json", R"({"!": 0, "<end>": 1000})");
  write("added_tokens.json", R"({"<pad>": 1001})");
  EXPECT_EQ(ids_with("; eos_token_id 1000; pad_token_id 1001\n"), (Ids{{"eos_token_id", 1000}, {"pad_token_id", 1001}}));
  write("generation_config.json", R"({"eos_token_id": null})");
  EXPECT_THAT(convert({"hf-export", run, folder / "null", "--tokenizer=" + source}), HasSubstr("; eos_token_id 1000; pad_token_id 1001\n"));
  fs::remove(source + "/generation_config.json");
  for (const char* name : {"vocab.json", "added_tokens.json"}) fs::remove(source + "/" + name);
  write("tokenizer.model", "");
  write("tokenizer_config.json", R"({"added_tokens_decoder": {"2": {"content": "</s>"}, "x": {"content": "</s>"}}, "eos_token": "</s>"})");
  EXPECT_EQ(ids_with("; eos_token_id 2\n"), (Ids{{"eos_token_id", 2}}));

  write("tokenizer_config.json", R"({"eos_token": 5})");
  EXPECT_THAT(convert_error<ConfigError>({"hf-export", run, folder / "x", "--tokenizer=" + source}),
              HasSubstr(source + "/tokenizer_config.json: eos_token is 5, expected a text"));
}

TEST(MicaConvert, HelpTeachesAndMistakesAreNamed) {
  const std::string help = convert_help({"--help"});
  EXPECT_THAT(help, AllOf(HasSubstr("hf-export CHECKPOINT HF_FOLDER [--dtype="), HasSubstr("--dry-run"), HasSubstr("Exit status")));
  EXPECT_THAT(convert_help({"hf-export", "--help"}), AllOf(HasSubstr("from_pretrained"), HasSubstr("--max-shard")));
  EXPECT_THAT(convert_error({}), HasSubstr("needs a command"));
  EXPECT_THAT(convert_error({"export"}), HasSubstr("no command 'export'; its commands: hf-import, hf-export"));
  EXPECT_THAT(convert_error({"hf-export", "a"}), HasSubstr("hf-export takes CHECKPOINT HF_FOLDER"));
  EXPECT_THAT(convert_error({"hf-export", "a", "b", "--ranks=2"}), HasSubstr("hf-export has no option --ranks=2"));
  EXPECT_THAT(convert_error({"hf-export", "a", "b", "-"}), HasSubstr("has no option -"));
  EXPECT_THAT(convert_error({"hf-export", "a", "b", "--dtype"}), HasSubstr("--dtype needs a value"));
  EXPECT_THAT(convert_error({"hf-export", "a", "b", "--dtype=fp32", "--dtype=fp32"}), HasSubstr("--dtype is given twice"));
  EXPECT_THAT(convert_error({"hf-export", "a", "b", "--dtype=int8"}), HasSubstr("--dtype is 'int8', expected fp32, bf16 or fp16"));
  for (const char* size : {"0", "-1", "5TB", "GB", "99999999999GB", "5 GB"}) {
    EXPECT_THAT(convert_error({"hf-export", "a", "b", fmt::format("--max-shard={}", size)}),
                HasSubstr(fmt::format("--max-shard is '{}'", size)));
  }
}

}  // namespace
}  // namespace mica::checkpoint
