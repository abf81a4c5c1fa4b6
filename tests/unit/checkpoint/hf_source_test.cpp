// SPDX-License-Identifier: Apache-2.0
#include "../../../src/checkpoint/convert/hf_source.hpp"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/nn/init.hpp"

#include "support/reference_file.hpp"
#include "support/temporary_folder.hpp"
#include "unit/checkpoint/hf_testing.hpp"
#include "unit/nn/nn_testing.hpp"

namespace mica::checkpoint {
namespace {

using mica::testing::ReferenceFile;
using nn::testing::floats;
using nn::testing::Rig;
using test::error_of;
using test::HfFolder;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Every parameter, read in ranges of `step` elements.
test::TensorValues parameters_of(HfSource& source, std::int64_t step = 1 << 20) {
  test::TensorValues all;
  for (const HfTensor& tensor : source.model().tensors) {
    auto& values = all[tensor.parameter];
    values.resize(static_cast<std::size_t>(tensor.shape.numel()));
    for (std::int64_t at = 0; at < tensor.shape.numel(); at += step) {
      source.read(tensor.parameter, "master", at, std::min(step, tensor.shape.numel() - at), values.data() + at);
    }
  }
  return all;
}

/// What the folder's model computes with Mica, plainly on one rank.
void expect_reference_numbers(const std::string& folder, const std::string& reference, double tolerance) {
  HfSource source(folder);
  const ReferenceFile expected("hf_" + reference + ".safetensors");
  Rig rig;
  const auto model = test::make_model(source.model());
  const nn::PlainParameters storage(*model, rig.context);
  rig.stream->synchronize();
  model->for_each_parameter(
      [&](const std::string& name, nn::Parameter& p) { source.read(name, "master", 0, p.shape.numel(), p.data.as<float>()); });
  const auto tokens = [&](const std::string& name) {
    const ConstTensorView view = expected.tensor(name);
    Tensor tensor = rig.context.make(view.shape, DType::i32);
    rig.kernels->copy(*rig.stream, view, tensor);
    return tensor;
  };
  const std::vector<float> logits = floats(rig, model->forward(rig.context, {tokens("ids")}, nullptr)[0]);
  const auto* wanted = expected.tensor("logits").as<float>();
  ASSERT_EQ(std::ssize(logits), expected.tensor("logits").numel());
  for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], wanted[i], tolerance) << folder << " " << i;
  const float loss = floats(rig, model->forward(rig.context, {tokens("ids"), tokens("targets")}, nullptr)[0])[0];
  EXPECT_NEAR(loss, expected.metadata("loss").get<double>(), tolerance) << folder;
}

TEST(HfSource, MicaComputesTransformersLogitsAndLoss) {
  expect_reference_numbers(test::hf_reference("gpt2"), "gpt2", 1e-4);
  expect_reference_numbers(test::hf_reference("gpt2_untied"), "gpt2_untied", 1e-4);  // four files
  expect_reference_numbers(test::hf_reference("llama"), "llama", 1e-4);
  expect_reference_numbers(test::hf_reference("llama_untied"), "llama_untied", 1e-4);
}

TEST(HfSource, MatricesOfConv1dAreTransposedWhateverThePanelsAndRanges) {
  const HfFolder folder = HfFolder::reference("gpt2");
  const auto& stored = folder.tensors.at("transformer.h.1.mlp.c_fc.weight");  // [in 24, out 96]
  ASSERT_THAT(stored.dims, ::testing::ElementsAre(24, 96));
  HfSource whole(test::hf_reference("gpt2"));
  const test::TensorValues expected = parameters_of(whole);
  const std::vector<float>& weight = expected.at("transformer.h.1.mlp.c_fc.weight");
  for (std::size_t out = 0; out < 96; ++out) {
    for (std::size_t in = 0; in < 24; ++in) ASSERT_EQ(weight[out * 24 + in], stored.values[in * 96 + out]);
  }
  EXPECT_EQ(expected.at("transformer.wte.weight"), folder.tensors.at("transformer.wte.weight").values);  // no Conv1D
  for (const std::int64_t panel : {1, 24, 100, 24 * 95}) {
    HfSource source(test::hf_reference("gpt2"), panel);
    EXPECT_EQ(parameters_of(source, 7), expected) << panel;
    EXPECT_EQ(parameters_of(source, 1000), expected) << panel;
  }
}

// The first published GPT-2 files: no prefix, the causal masks as tensors, some in 16 bits.
TEST(HfSource, OldFilesHaveNoPrefixAndHoldMasks) {
  const TemporaryFolder folder;
  HfFolder old = HfFolder::reference("gpt2");
  HfSource reference(test::hf_reference("gpt2"));
  const test::TensorValues expected = parameters_of(reference);
  std::map<std::string, HfFolder::Tensor> tensors;
  for (const auto& [name, tensor] : old.tensors) tensors[name.substr(std::strlen("transformer."))] = tensor;
  for (int i = 0; i < 2; ++i) {
    tensors[fmt::format("h.{}.attn.bias", i)] = {{1, 1, 17, 17}, std::vector<float>(17 * 17, 1.0F)};
    tensors[fmt::format("h.{}.attn.masked_bias", i)] = {{}, {-10000.0F}};
  }
  old.tensors = tensors;
  old.write(folder / "old");
  HfSource source(folder / "old");
  EXPECT_EQ(parameters_of(source), expected);
}

TEST(HfSource, SixteenBitTensorsAreWidened) {
  const TemporaryFolder folder;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    HfFolder half = HfFolder::reference("gpt2");
    for (auto& [name, tensor] : half.tensors) {
      tensor.dtype = dtype;
      for (float& value : tensor.values) value = std::round(value * 64) / 64;  // exact in both
    }
    half.write(folder / dtype_name(dtype).data());
    HfSource source(folder / dtype_name(dtype).data());
    EXPECT_EQ(parameters_of(source).at("transformer.wpe.weight"), half.tensors.at("transformer.wpe.weight").values);
  }
}

TEST(HfSource, AHeadBesideATiedEmbeddingMustEqualIt) {
  const TemporaryFolder folder;
  HfFolder hf = HfFolder::reference("gpt2");
  hf.tensors["lm_head.weight"] = hf.tensors["transformer.wte.weight"];
  hf.write(folder / "same");
  EXPECT_NO_THROW(HfSource(folder / "same").check_tied_head());
  hf.tensors["lm_head.weight"].values.back() += 1;
  hf.write(folder / "other");
  EXPECT_THAT(error_of<CheckpointError>([&] { HfSource(folder / "other").check_tied_head(); }),
              AllOf(HasSubstr("tensor 'lm_head.weight' differs from 'transformer.wte.weight'"), HasSubstr("tie_word_embeddings")));
  EXPECT_NO_THROW(HfSource(test::hf_reference("gpt2")).check_tied_head());
}

TEST(HfSource, TensorsThatDoNotFitTheConfigAreNamed) {
  const TemporaryFolder folder;
  int number = 0;
  const auto error_after = [&](auto change) {
    HfFolder hf = HfFolder::reference("gpt2");
    change(hf);
    const std::string path = folder / std::to_string(number++);
    hf.write(path);
    return error_of<CheckpointError>([&] { HfSource source(path); });
  };
  EXPECT_THAT(error_after([](HfFolder& hf) { hf.tensors.erase("transformer.h.1.ln_2.bias"); }),
              HasSubstr("has no tensor 'transformer.h.1.ln_2.bias', which its config.json implies"));
  EXPECT_THAT(error_after([](HfFolder& hf) {
                hf.tensors["transformer.h.2.ln_1.bias"] = {{24}, std::vector<float>(24)};
              }),
              HasSubstr("tensor 'transformer.h.2.ln_1.bias' is no part of the model"));
  EXPECT_THAT(error_after([](HfFolder& hf) { hf.tensors["wte.weight"] = hf.tensors["transformer.wte.weight"]; }),
              HasSubstr("tensor 'wte.weight' is no part of the model"));
  EXPECT_THAT(error_after([](HfFolder& hf) {
                hf.tensors["transformer.h.0.mlp.c_fc.weight"].dims = {96, 24};
              }),
              HasSubstr("'transformer.h.0.mlp.c_fc.weight' has the shape [96, 24], but config.json implies [24, 96]"));
  EXPECT_THAT(error_after([](HfFolder& hf) { hf.config["tie_word_embeddings"] = false; }), HasSubstr("has no tensor 'lm_head.weight'"));
  EXPECT_THAT(error_after([](HfFolder& hf) { hf.config["vocab_size"] = 62; }),
              HasSubstr("'transformer.wte.weight' has the shape [61, 24]"));
}

TEST(HfSource, TheIndexAndItsFilesSayTheSame) {
  const TemporaryFolder folder;
  int number = 0;
  const auto error_after = [&](auto change) {
    const std::string path = folder / std::to_string(number++);
    std::filesystem::copy(test::hf_reference("gpt2_untied"), path);
    auto index = nlohmann::ordered_json::parse(io::read_file(path + "/model.safetensors.index.json"));
    change(index, path);
    std::ofstream(path + "/model.safetensors.index.json") << index.dump();
    return error_of<Error>([&] { HfSource source(path); });
  };
  using J = nlohmann::ordered_json;
  const std::string norm = "transformer.h.0.ln_1.weight";  // in file 1
  EXPECT_THAT(error_after([](J& index, const std::string&) { index.erase("weight_map"); }),
              HasSubstr("model.safetensors.index.json: the key weight_map is missing"));
  EXPECT_THAT(error_after([&](J& index, const std::string&) { index["weight_map"].erase(norm); }),
              AllOf(HasSubstr("model-00001-of-00004.safetensors: holds tensor '" + norm), HasSubstr("does not name")));
  EXPECT_THAT(error_after([&](J& index, const std::string&) { index["weight_map"][norm] = "model-00002-of-00004.safetensors"; }),
              HasSubstr("says is in model-00002-of-00004.safetensors"));
  EXPECT_THAT(error_after([&](J& index, const std::string&) { index["weight_map"]["more"] = "model-00002-of-00004.safetensors"; }),
              HasSubstr("says that tensor 'more' is in 'model-00002-of-00004.safetensors', which has none"));
  EXPECT_THAT(error_after([&](J& index, const std::string&) { index["weight_map"][norm] = "../model.safetensors"; }),
              HasSubstr("expected the name of a file in the same folder"));
  EXPECT_THAT(error_after([&](J& index, const std::string&) { index["weight_map"][norm] = 3; }),
              HasSubstr("[\"" + norm + "\"] is 3, expected a text"));
  EXPECT_THAT(error_after([&](J&, const std::string& path) { std::filesystem::remove(path + "/model-00003-of-00004.safetensors"); }),
              HasSubstr("names the file 'model-00003-of-00004.safetensors', which is missing"));
  EXPECT_THAT(error_after([&](J& index, const std::string& path) {  // the same tensors in two files
                std::filesystem::copy_file(path + "/model-00003-of-00004.safetensors", path + "/model-00005.safetensors");
                index["weight_map"]["more"] = "model-00005.safetensors";
              }),
              AllOf(HasSubstr("model-00005.safetensors: holds tensor"), HasSubstr("holds as well")));
  std::filesystem::create_directory(folder / "none");
  std::filesystem::copy_file(test::hf_reference("gpt2") + "/config.json", folder / "none/config.json");
  EXPECT_THAT(error_of<ConfigError>([&] { HfSource source(folder / "none"); }), HasSubstr("holds neither model.safetensors nor"));
}

}  // namespace
}  // namespace mica::checkpoint
