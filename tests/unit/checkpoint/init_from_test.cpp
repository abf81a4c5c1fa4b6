// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/init_from.hpp"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/convert.hpp"
#include "mica/checkpoint/load.hpp"
#include "mica/checkpoint/verify.hpp"

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/hf_testing.hpp"

namespace mica::checkpoint {
namespace {

using test::error_of;
using test::HfFolder;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Keys = std::map<std::string, std::string>;

/// As a run's config has them: zeros where a number follows from others.
Keys run_keys(const std::string& name) {
  Keys keys = read_hf_model(test::hf_reference(name)).keys.all();
  keys["dropout"] = "0.1";
  if (keys["type"] == "llama") keys["intermediate_size"] = "0";
  return keys;
}

/// Every rank's model takes its parameters from `path`; each must then hold those of the reference.
void expect_init(int num_ranks, const std::string& path, const std::string& name, const std::string& source_says,
                 const fsdp::Options& options = {}) {
  run_local_ranks(num_ranks, [&](std::unique_ptr<ProcessGroup> world) {
    test::ShardedHfModel model(std::move(world), read_hf_model(test::hf_reference(name)), options);
    const auto comm = make_group_comm(model.device_mesh.metrics_group(), model.device_mesh.compute());
    const InitReport report = init_from(path, run_keys(name), model.root(), *comm);
    EXPECT_THAT(report.source, HasSubstr(source_says));
    EXPECT_EQ(report.numel, model.module->num_parameters());
    HfSource source(test::hf_reference(name));
    for (const fsdp::Piece& p : model.root().pieces()) {
      const auto* held = model.root().master(p).as<float>();
      for (std::int64_t i = 0; i < p.num_runs(); ++i) {
        const fsdp::Run run = p.run(i);
        std::vector<float> expected(static_cast<std::size_t>(run.numel()));
        source.read(model.root().parameter(p).full_name, "master", run.begin, run.numel(), expected.data());
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), held + (run.offset - p.offset))) << model.root().parameter(p).full_name;
      }
    }
  });
}

TEST(InitFrom, HuggingFaceFoldersAndCheckpointsGiveTheSameParameters) {
  const TemporaryFolder folder;
  fsdp::Options per_parameter;
  per_parameter.sharding = fsdp::Sharding::per_parameter;
  for (const std::string name : {"gpt2", "llama_untied"}) {
    expect_init(1, test::hf_reference(name), name, "Hugging Face folder ");
    expect_init(3, test::hf_reference(name), name, "Hugging Face folder ");
    expect_init(2, test::hf_reference(name), name, "Hugging Face folder ", per_parameter);
    std::ostringstream out;
    (void)run_convert({"hf-import", test::hf_reference(name), folder / name}, out, nullptr);
    expect_init(3, folder / name, name, "checkpoint " + (folder / name));
  }
  test::save_hf_model(test::hf_reference("gpt2"), 2, folder / "run");
  expect_init(3, folder / "run", "gpt2", "run/checkpoints/step-00000001", per_parameter);  // a run's folder: its newest
}

// What a model came with goes on from folder to checkpoint, also through a load; rank 0 has it for those that it saves.
TEST(InitFrom, TheTokenizerIsHandedOn) {
  const TemporaryFolder folder;
  HfFolder hf = HfFolder::reference("gpt2");
  hf.config["eos_token_id"] = 60;
  hf.texts = {{"tokenizer.json", "{}"}, {"merges.txt", "a b\n"}};
  hf.write(folder / "hf");
  std::string checkpoint = folder / "hf";
  for (const std::string run : {"one", "two"}) {
    SCOPED_TRACE(run);
    run_local_ranks(2, [&](std::unique_ptr<ProcessGroup> world) {
      const bool is_first = world->rank() == 0;
      test::ShardedHfModel model(std::move(world), read_hf_model(test::hf_reference("gpt2")));
      const auto comm = make_group_comm(model.device_mesh.metrics_group(), model.device_mesh.compute());
      const auto expect_tokenizer = [&](const std::shared_ptr<const HfTokenizer>& tokenizer) {
        ASSERT_EQ(tokenizer != nullptr, is_first);
        if (tokenizer == nullptr) return;
        EXPECT_EQ(tokenizer->source, folder / "hf");
        EXPECT_EQ(tokenizer->token_ids.at("eos_token_id"), std::vector<std::int64_t>{60});
        EXPECT_EQ(tokenizer->files, hf.texts);
      };
      const InitReport report = init_from(checkpoint, run_keys("gpt2"), model.root(), *comm);
      expect_tokenizer(report.tokenizer);
      SaveState state{.root = &model.root(), .run_id = "r0", .step = 1, .model = run_keys("gpt2"), .tokenizer = report.tokenizer};
      save(folder / run, state, *comm);
      const std::string saved = folder / (run + "/checkpoints/step-00000001");
      expect_tokenizer(load(saved, open_checkpoint(saved, *comm), {.root = &model.root()}, *comm).tokenizer);
    });
    checkpoint = folder / (run + "/checkpoints/step-00000001");
    EXPECT_TRUE(verify(checkpoint).damage.empty());
  }
}

// What was unsharded by hand before would be used with its old values.
TEST(InitFrom, WhatIsUnshardedIsGatheredAnew) {
  run_local_ranks(2, [](std::unique_ptr<ProcessGroup> world) {
    test::ShardedHfModel model(std::move(world), read_hf_model(test::hf_reference("gpt2")));
    const auto comm = make_group_comm(model.device_mesh.metrics_group(), model.device_mesh.compute());
    fsdp::Unit& unit = *model.root().units()[1];
    unit.unshard().wait();
    (void)init_from(test::hf_reference("gpt2"), run_keys("gpt2"), model.root(), *comm);
    EXPECT_FALSE(unit.storage()->is_unsharded());
  });
}

TEST(InitFrom, AnotherModelIsRefusedByKeyOnAllRanks) {
  const auto error_with = [&](const std::string& path, const Keys& keys, int num_ranks = 1) {
    std::string text;
    run_local_ranks(num_ranks, [&](std::unique_ptr<ProcessGroup> world) {
      const bool is_first = world->rank() == 0;
      test::ShardedHfModel model(std::move(world), read_hf_model(test::hf_reference("gpt2")));
      const auto comm = make_group_comm(model.device_mesh.metrics_group(), model.device_mesh.compute());
      const std::string mine = error_of<Error>([&] { (void)init_from(path, keys, model.root(), *comm); });
      if (is_first) text = mine;
    });
    return text;
  };
  Keys keys = run_keys("gpt2");
  keys["layers"] = "4";
  EXPECT_THAT(error_with(test::hf_reference("gpt2"), keys, 3),
              AllOf(HasSubstr("model.layers = 4, but "), HasSubstr("hf_gpt2/config.json has 2"), HasSubstr("--model.layers=2")));
  EXPECT_THAT(error_with(test::hf_reference("gpt2_untied"), run_keys("gpt2")), HasSubstr("model.context = 17, but"));
  EXPECT_THAT(error_with(test::hf_reference("llama"), run_keys("gpt2")), HasSubstr("but"));
  // Keys that agree although the model does not: shapes and names are compared as well.
  EXPECT_THAT(error_with(test::hf_reference("gpt2_untied"), {{"type", "gpt2"}}),
              AllOf(HasSubstr("parameter transformer.wte.weight has the shape [37, 20] there and [61, 24] in this run's model")));
  EXPECT_THAT(error_with(test::hf_reference("llama"), {{"type", "llama"}}), HasSubstr("has no parameter transformer.wte.weight"));
  EXPECT_THAT(error_with("/proc/nowhere", keys), HasSubstr("/proc/nowhere: no such folder"));
}

}  // namespace
}  // namespace mica::checkpoint
