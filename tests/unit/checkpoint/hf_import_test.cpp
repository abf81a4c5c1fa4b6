#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/load.hpp"
#include "mica/checkpoint/verify.hpp"
#include "mica/core/half.hpp"

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/convert_testing.hpp"
#include "unit/checkpoint/hf_testing.hpp"

namespace mica::checkpoint {
namespace {

using test::convert;
using test::convert_error;
using test::HfFolder;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

TEST(HfImport, F2_WhatIsExportedAgainHasTheSameBits) {
  const TemporaryFolder folder;
  for (const std::string name : {"gpt2", "gpt2_untied", "llama", "llama_untied"}) {
    const std::string checkpoint = folder / name;
    const std::string type = name.substr(0, name.find('_'));
    EXPECT_THAT(
        convert({"hf-import", test::hf_reference(name), checkpoint + "/"}),
        AllOf(HasSubstr("wrote " + type + " with"), HasSubstr("[model]\n"), HasSubstr("type = " + type + "\n")));
    EXPECT_FALSE(fs::exists(checkpoint + ".tmp"));
    EXPECT_TRUE(verify(checkpoint).damage.empty());
    convert({"hf-export", checkpoint, checkpoint + ".hf"});
    EXPECT_EQ(test::tensors_of_folder(checkpoint + ".hf"), test::tensors_of_folder(test::hf_reference(name)));
    EXPECT_EQ(read_hf_model(checkpoint + ".hf").keys.all(), read_hf_model(test::hf_reference(name)).keys.all());
  }
  EXPECT_EQ(io::read_file(folder / "llama.hf/model.safetensors"),
            io::read_file(test::hf_reference("llama") + "/model.safetensors"));
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
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), model.root().master(p).as<float>()))
          << model.root().parameter(p).full_name;
    }
  });
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
    EXPECT_THAT(convert_error({"hf-import", folder / "hf", folder / "ck", option}),
                HasSubstr("'lm_head.weight' differs from"));
    EXPECT_THAT(convert_error({"hf-import", folder / "hf", folder / "hf", option}), HasSubstr("exists already"));
  }
  EXPECT_FALSE(fs::exists(folder / "ck"));
  EXPECT_FALSE(fs::exists(folder / "ck.tmp"));
}

}  // namespace
}  // namespace mica::checkpoint
