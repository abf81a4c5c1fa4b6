// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/load.hpp"
#include "mica/checkpoint/verify.hpp"
#include "mica/core/half.hpp"

#include "../../../src/checkpoint/checksum_list.hpp"
#include "support/temporary_folder.hpp"
#include "unit/checkpoint/convert_testing.hpp"
#include "unit/checkpoint/hf_testing.hpp"

namespace mica::checkpoint {
namespace {

using test::convert;
using test::convert_error;
using test::HfFolder;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

TEST(HfImport, F2_WhatIsExportedAgainHasTheSameBits) {
  const TemporaryFolder folder;
  for (const std::string name : {"gpt2", "gpt2_untied", "llama", "llama_untied"}) {
    const std::string checkpoint = folder / name;
    const std::string type = name.substr(0, name.find('_'));
    EXPECT_THAT(convert({"hf-import", test::hf_reference(name), checkpoint + "/"}),
                AllOf(HasSubstr("wrote " + type + " with"), HasSubstr("[model]\n"), HasSubstr("type = " + type + "\n")));
    EXPECT_FALSE(fs::exists(checkpoint + ".tmp"));
    EXPECT_TRUE(verify(checkpoint).damage.empty());
    convert({"hf-export", checkpoint, checkpoint + ".hf"});
    EXPECT_EQ(test::tensors_of_folder(checkpoint + ".hf"), test::tensors_of_folder(test::hf_reference(name)));
    EXPECT_EQ(read_hf_model(checkpoint + ".hf").keys.all(), read_hf_model(test::hf_reference(name)).keys.all());
  }
  EXPECT_EQ(io::read_file(folder / "llama.hf/model.safetensors"), io::read_file(test::hf_reference("llama") + "/model.safetensors"));
}

TEST(HfImport, SmallPanelsAndSixteenBitsGiveTheSameParameters) {
  const TemporaryFolder folder;
  HfFolder half = HfFolder::reference("gpt2");
  for (auto& [name, tensor] : half.tensors) {
    tensor.dtype = DType::f16;
    for (float& value : tensor.values) value = static_cast<float>(f16(value));
  }
  half.write(folder / "hf");
  for (const std::int64_t panel : {std::int64_t{30}, kPanelNumel}) {
    const std::string checkpoint = folder / std::to_string(panel);
    ConvertOptions options;
    options.panel_numel = panel;
    std::int64_t last = 0;
    options.progress = [&](std::int64_t done, std::int64_t total) {
      EXPECT_GE(done, last);
      EXPECT_LE(done, total);
      last = done;
    };
    EXPECT_EQ(hf_import(folder / "hf", checkpoint, options).numel, 16368);
    EXPECT_GE(last, 16368 * 4);
    hf_export(checkpoint, checkpoint + ".hf", {.dtype = DType::f16}, {});
    EXPECT_EQ(test::tensors_of_folder(checkpoint + ".hf"), test::tensors_of_folder(folder / "hf"));
  }
}

// Three ranks, sharded, take the checkpoint of one.
TEST(HfImport, ItsCheckpointLoadsOnAnyMesh) {
  const TemporaryFolder folder;
  convert({"hf-import", test::hf_reference("llama"), folder / "ck"});
  run_local_ranks(3, [&](std::unique_ptr<ProcessGroup> world) {
    test::ShardedHfModel model(std::move(world), read_hf_model(test::hf_reference("llama")));
    const auto comm = make_group_comm(model.device_mesh.metrics_group(), model.device_mesh.compute());
    load(folder / "ck", open_checkpoint(folder / "ck", *comm), {.root = &model.root()}, *comm);
    HfSource source(test::hf_reference("llama"));
    std::vector<float> expected;
    for (const fsdp::Piece& p : model.root().pieces()) {
      expected.resize(static_cast<std::size_t>(p.numel()));
      source.read(model.root().parameter(p).full_name, "master", p.begin, p.numel(), expected.data());
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), model.root().master(p).as<float>())) << model.root().parameter(p).full_name;
    }
  });
}

/// A Llama with a tokenizer beside it. One byte of tokenizer.model is no text.
HfFolder with_tokenizer() {
  HfFolder hf = HfFolder::reference("llama");
  hf.config["bos_token_id"] = 1;
  hf.config["eos_token_id"] = {2, 40};
  hf.config["pad_token_id"] = nullptr;
  hf.texts = {{"tokenizer.json", "{\"a\": 1}\n"},
              {"tokenizer.model", std::string("\0\xff", 2)},
              {"tokenizer_config.json", "{}"},
              {"special_tokens_map.json", "{}"},
              {"vocab.json", "{}"},
              {"merges.txt", ""},
              {"README.md", "not of the tokenizer"}};
  return hf;
}

TEST(HfImport, TheTokenizerComesBackWhenTheFolderIsGone) {
  const TemporaryFolder folder;
  const HfFolder hf = with_tokenizer();
  hf.write(folder / "hf");
  EXPECT_THAT(convert({"hf-import", folder / "hf", folder / "ck"}),
              HasSubstr("with the tokenizer: merges.txt, special_tokens_map.json, tokenizer.json, tokenizer.model, tokenizer_config.json, "
                        "vocab.json; bos_token_id 1; eos_token_id 2, 40\n"));
  fs::remove_all(folder / "hf");
  EXPECT_TRUE(verify(folder / "ck").damage.empty());
  convert({"reshard", folder / "ck", folder / "cut", "--ranks=3"});
  for (const char* checkpoint : {"ck", "cut"}) {
    SCOPED_TRACE(checkpoint);
    const std::string out = folder / (std::string(checkpoint) + "-hf");
    EXPECT_THAT(convert({"hf-export", folder / checkpoint, out}),
                AllOf(HasSubstr("with the tokenizer of " + (folder / "hf") + ": merges.txt, "), ::testing::Not(HasSubstr("without"))));
    for (const auto& [name, text] : hf.texts) {
      if (name == "README.md") continue;
      EXPECT_EQ(io::read_file(out + "/" + name), text) << name;
    }
    EXPECT_FALSE(fs::exists(out + "/README.md"));
    const auto config = nlohmann::json::parse(io::read_file(out + "/config.json"));
    EXPECT_EQ(config["bos_token_id"], 1);
    EXPECT_EQ(config["eos_token_id"], nlohmann::json({2, 40}));
    EXPECT_TRUE(config["pad_token_id"].is_null());
    const auto generation = nlohmann::json::parse(io::read_file(out + "/generation_config.json"));
    EXPECT_EQ(generation["bos_token_id"], 1);
    EXPECT_EQ(generation["eos_token_id"], nlohmann::json({2, 40}));
    EXPECT_FALSE(generation.contains("pad_token_id"));
    EXPECT_TRUE(verify_checksum_list(checksum_list_path(out), {}).damage.empty());
  }
}

TEST(HfImport, AGenerationConfigIsKeptAndAnotherTokenizerMayBeChosen) {
  const TemporaryFolder folder;
  HfFolder hf = with_tokenizer();
  hf.texts["generation_config.json"] = "{\"temperature\": 0.6}";
  hf.write(folder / "hf");
  convert({"hf-import", folder / "hf", folder / "ck"});
  convert({"hf-export", folder / "ck", folder / "out"});
  EXPECT_EQ(io::read_file(folder / "out/generation_config.json"), hf.texts["generation_config.json"]);

  fs::create_directory(folder / "vocabulary");  // without config.json: no ids are known
  std::ofstream(folder / "vocabulary/tokenizer.json") << "{\"b\": 2}";
  EXPECT_THAT(convert({"hf-export", folder / "ck", folder / "other", "--tokenizer=" + (folder / "vocabulary")}),
              HasSubstr("with the tokenizer of " + (folder / "vocabulary") + ": tokenizer.json\n"));
  EXPECT_EQ(io::read_file(folder / "other/tokenizer.json"), "{\"b\": 2}");
  EXPECT_FALSE(fs::exists(folder / "other/merges.txt")) << "of two vocabularies only one";
  EXPECT_TRUE(nlohmann::json::parse(io::read_file(folder / "other/config.json"))["eos_token_id"].is_null());
  EXPECT_FALSE(fs::exists(folder / "other/generation_config.json"));
}

TEST(HfImport, WhatAFolderDoesNotHaveIsSaid) {
  const TemporaryFolder folder;
  HfFolder hf = HfFolder::reference("gpt2");
  hf.texts = {{"tokenizer_config.json", "{}"}};
  hf.config.erase("bos_token_id");
  hf.config["eos_token_id"] = 60;
  hf.config["pad_token_id"] = -1;
  hf.write(folder / "hf");
  EXPECT_THAT(convert({"hf-import", folder / "hf", folder / "ck"}), HasSubstr("without a tokenizer: no tokenizer.json"));
  EXPECT_THAT(convert({"hf-export", folder / "ck", folder / "out"}),
              HasSubstr("without a tokenizer, since " + (folder / "hf") +
                        " had none; to include them, give --tokenizer=HF_FOLDER; with "
                        "tokenizer_config.json; eos_token_id 60; pad_token_id -1\n"));
  const auto config = nlohmann::json::parse(io::read_file(folder / "out/config.json"));
  EXPECT_TRUE(config["bos_token_id"].is_null()) << "what transformers takes where the key is missing is not in this vocabulary";
  EXPECT_EQ(config["eos_token_id"], 60);
  EXPECT_EQ(config["pad_token_id"], -1);

  hf.config["eos_token_id"] = "</s>";
  hf.write(folder / "text");
  EXPECT_THAT(convert_error<ConfigError>({"hf-import", folder / "text", folder / "ck2"}),
              HasSubstr("text/config.json: eos_token_id is \"</s>\", expected a whole number"));
}

TEST(HfImport, ADamagedTokenizerIsFound) {
  const TemporaryFolder folder;
  with_tokenizer().write(folder / "hf");
  convert({"hf-import", folder / "hf", folder / "ck"});
  const std::string path = folder / "ck/tokenizer.json";
  const std::string sound = io::read_file(path);
  for (const std::string& damaged : {sound.substr(1), "[" + sound.substr(1), std::string()}) {
    std::ofstream(path) << damaged;
    ASSERT_EQ(verify(folder / "ck").damage.size(), 1U);
    EXPECT_THAT(verify(folder / "ck").damage[0], HasSubstr("tokenizer.json"));
    EXPECT_THAT(convert_error<DamagedCheckpointError>({"hf-export", folder / "ck", folder / "out"}), HasSubstr("tokenizer.json"));
    EXPECT_FALSE(fs::exists(folder / "out"));
  }
  fs::remove(path);
  EXPECT_THAT(verify(folder / "ck").damage[0], HasSubstr("tokenizer.json"));
}

TEST(HfImport, ADryRunChecksTheDataAndWritesNothing) {
  const TemporaryFolder folder;
  EXPECT_THAT(convert({"hf-import", test::hf_reference("gpt2"), folder / "ck", "--dry-run"}),
              AllOf(HasSubstr("would write gpt2 with 16,368 parameters"), HasSubstr("width = 24")));
  HfFolder hf = HfFolder::reference("gpt2");
  hf.tensors["lm_head.weight"] = hf.tensors["transformer.wte.weight"];
  hf.tensors["lm_head.weight"].values[3] += 1;
  hf.write(folder / "hf");
  for (const std::string option : {"--dry-run", "--quiet"}) {
    EXPECT_THAT(convert_error({"hf-import", folder / "hf", folder / "ck", option}), HasSubstr("'lm_head.weight' differs from"));
    EXPECT_THAT(convert_error({"hf-import", folder / "hf", folder / "hf", option}), HasSubstr("exists already"));
  }
  EXPECT_FALSE(fs::exists(folder / "ck"));
  EXPECT_FALSE(fs::exists(folder / "ck.tmp"));
}

}  // namespace
}  // namespace mica::checkpoint
