// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/manifest.hpp"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "mica/io/crc32c.hpp"

#include "support/temporary_folder.hpp"
#include "support/unreadable_file.hpp"

namespace mica::checkpoint {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using OrderedJson = nlohmann::ordered_json;

/// Two shard ranks; unit "a" is sharded and has state, unit "b" is not.
Manifest example() {
  Manifest m;
  m.mica_version = "0.1.0";
  m.run_id = "1a2b3c4d";
  m.step = 500;
  m.parent = CheckpointId{"0a0b0c0d", 400};
  m.began_from = "/runs/x/checkpoints/step-00000300";
  m.tokens = 123456789012;
  m.global_batch = 12;
  m.sequences = 6000;
  m.data = "50000 tokens in 1 file, crc32c 0badcafe";
  m.seed = 18446744073709551615ULL;
  m.world_size = 4;
  m.shard_size = 2;
  m.replicas = 2;
  m.strategy = "hybrid_shard";
  m.kernels = "cpu";
  m.omp_threads = 3;
  m.optimizer = "adamw";
  m.optimizer_steps = 499;
  m.state_kinds = {"exp_avg", "exp_avg_sq"};
  m.state_dtypes = {DType::f32, DType::bf16};
  m.parameter_steps = {{"a.bias", 17}};
  m.scalars = {{"loss_scale", 16777216.5}};
  m.val_loss = 2.34375;
  m.val_data = "7000 tokens in 1 file, crc32c 0badf00d; 128 sequences of 32 tokens";
  m.diverged = true;
  m.retention = Retention(3, 1000, 1);
  m.model = {{"type", "mlp"}, {"width", "7"}};
  m.config = "[run]\nname = \"q\"\t\xC3\xA9\n";
  m.units = {{"a", 2, 20, {{"a.weight", Shape{5, 7}}, {"a.bias", Shape{3}}}},
             {"b", 1, 1, {{"b.scale", Shape{1}}}},
             {"c.count", 1, 3, {{"c.count", Shape{3}}}, "flat", UnitRole::buffer, DType::i64}};
  m.files = {{"shard-0.h5",
              0,
              1000,
              7,
              {{"/units/0/master", 0, "master", 100, 80, {1}},
               {"/units/0/exp_avg", 0, "exp_avg", 180, 80, {0xffffffff}},
               {"/units/1/master", 1, "master", 300, 4, {2}},
               {"/units/2/master", 2, "master", 304, 24, {3}, DType::i64}}},
             {"shard-1.h5", 1, 900, 8, {{"/units/0/master", 0, "master", 100, 80, {0}}}}};
  m.index = {"model.h5", 0, 77, 9, {}};
  m.tokenizer = {"/models/llama",
                 {{"bos_token_id", {1}}, {"eos_token_id", {2, 3}}, {"pad_token_id", {}}},
                 {{"tokenizer.json", 0, 50, 11, {}}, {"merges.txt", 0, 0, 0, {}}}};
  return m;
}

/// The text with its checksum made to fit: what an editor with a calculator would write.
std::string sign(const OrderedJson& json) {
  std::string text = json.dump(1);
  text.resize(text.size() - 2);
  return text + fmt::format(",\n \"manifest_crc32c\": \"{:08x}\"\n}}\n", io::crc32c(text.data(), static_cast<std::int64_t>(text.size())));
}

OrderedJson example_json() {
  OrderedJson json = OrderedJson::parse(manifest_text(example()));
  json.erase("manifest_crc32c");
  return json;
}

// What format 3 did not know is empty.
TEST(Manifest, Format3IsRead) {
  OrderedJson json = example_json();
  json["format_version"] = 3;
  for (const char* key : {"parent", "began_from", "global_batch", "sequences", "data", "tokenizer"}) json.erase(key);
  const Manifest m = parse_manifest(sign(json), "m.json");
  EXPECT_EQ(m.step, 500);
  EXPECT_EQ(m.parent, std::nullopt);
  EXPECT_EQ(m.global_batch, 0);
  EXPECT_EQ(m.sequences, 0);
  EXPECT_EQ(m.data, "");
  json["format_version"] = 4;
  EXPECT_THAT(error_of<DamagedCheckpointError>([&] { (void)parse_manifest(sign(json), "m.json"); }), HasSubstr("parent"));
}

// Nor did format 4 know of tokenizers, and it called a key of the model otherwise.
TEST(Manifest, Format4IsRead) {
  OrderedJson json = example_json();
  json["format_version"] = 4;
  json.erase("tokenizer");
  json["model"] = {{"type", "mlp"}, {"hidden", "9"}};
  const Manifest m = parse_manifest(sign(json), "m.json");
  EXPECT_EQ(m.model, (std::map<std::string, std::string>{{"type", "mlp"}, {"intermediate_size", "9"}}));
  EXPECT_EQ(m.tokenizer.source, "");
  EXPECT_TRUE(m.tokenizer.files.empty());
  json["format_version"] = 5;
  EXPECT_THAT(error_of<DamagedCheckpointError>([&] { (void)parse_manifest(sign(json), "m.json"); }), HasSubstr("tokenizer is missing"));
}

TEST(Manifest, ComesBackAsItWas) {
  const Manifest m = example();
  const std::string text = manifest_text(m);
  const Manifest back = parse_manifest(text, "m.json");
  EXPECT_EQ(manifest_text(back), text);
  Manifest header = m;
  header.files.clear();
  EXPECT_EQ(manifest_text(header, {file_entry_text(m.files[0]), file_entry_text(m.files[1])}), text);
  EXPECT_EQ(back.parent, m.parent);
  EXPECT_EQ(back.began_from, m.began_from);
  EXPECT_EQ(back.global_batch, 12);
  EXPECT_EQ(back.sequences, 6000);
  EXPECT_EQ(back.data, m.data);
  EXPECT_EQ(back.seed, m.seed);
  EXPECT_EQ(back.config, m.config);
  EXPECT_EQ(back.model, m.model);
  EXPECT_EQ(back.state_dtypes, m.state_dtypes);
  EXPECT_EQ(back.parameter_steps, m.parameter_steps);
  EXPECT_EQ(back.scalars, m.scalars);
  EXPECT_EQ(back.val_data, m.val_data);
  EXPECT_EQ(parse_manifest_header(text, "m.json").val_data, m.val_data);
  EXPECT_EQ(back.units[0].parameters[0].shape, (Shape{5, 7}));
  EXPECT_EQ(back.files[0].datasets[1].block_crcs, (std::vector<std::uint32_t>{0xffffffff}));
  EXPECT_EQ(back.total_bytes(), 2027);
  EXPECT_EQ(back.all_files().size(), 5U);
  EXPECT_EQ(back.tokenizer.source, m.tokenizer.source);
  EXPECT_EQ(back.tokenizer.token_ids, m.tokenizer.token_ids);
  ASSERT_EQ(back.tokenizer.files.size(), 2U);
  EXPECT_EQ(back.tokenizer.files[0].name, "tokenizer.json");
  EXPECT_EQ(back.tokenizer.files[0].rest_crc, 11U);
  EXPECT_EQ(parse_manifest_header(text, "m.json").tokenizer.files.size(), 2U);
  EXPECT_EQ(back.index.rest_crc, 9U);
  EXPECT_EQ(back.num_parameters(), 39);
  EXPECT_EQ(parse_manifest(sign(example_json()), "m.json").step, 500);
}

// Files of format 5 from before there were such entries.
TEST(Manifest, ALossAndRulesMayBeMissing) {
  EXPECT_EQ(parse_manifest(manifest_text(example()), "m.json").val_loss, 2.34375);
  EXPECT_EQ(parse_manifest(manifest_text(example()), "m.json").retention, Retention(3, 1000, 1));
  for (const bool is_null : {false, true}) {
    OrderedJson json = example_json();
    json.erase("diverged");
    json.erase("val_data");
    for (const char* key : {"val_loss", "retention"}) {
      json.erase(key);
      if (is_null) json[key] = nullptr;
    }
    EXPECT_FALSE(parse_manifest(sign(json), "m.json").val_loss);
    EXPECT_EQ(parse_manifest(sign(json), "m.json").val_data, "");
    EXPECT_FALSE(parse_manifest(sign(json), "m.json").diverged);
    EXPECT_FALSE(parse_manifest(sign(json), "m.json").retention);
  }
}

TEST(Manifest, TextThatIsNoUtf8DoesNotCostACheckpoint) {
  Manifest m = example();
  m.config = "name=\xff";
  EXPECT_EQ(parse_manifest(manifest_text(m), "m.json").step, 500);
}

TEST(Manifest, EveryFlippedBitAndEveryTruncationIsFound) {
  const std::string text = manifest_text(example());
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      ASSERT_THROW((void)parse_manifest(damaged, "m.json"), DamagedCheckpointError) << i << " " << bit;
    }
    ASSERT_THROW((void)parse_manifest(text.substr(0, i), "m.json"), DamagedCheckpointError) << i;
  }
  EXPECT_THROW((void)parse_manifest(text + "\n", "m.json"), DamagedCheckpointError);
}

struct BadValue {
  const char* pointer;  // JSON pointer
  OrderedJson value;    // null: the key is removed
  const char* expected;
};

// Valid checksum, nonsense inside: the error names the file and the key.
TEST(Manifest, TrustsNoValue) {
  const std::vector<BadValue> cases{
      {"/step", nullptr, "step is missing"},
      {"/step", -1, "step is -1"},
      {"/step", 1.5, "step is 1.5, expected a whole number from 0"},
      {"/step", 18446744073709551615ULL, "step is 18446744073709551615"},
      {"/step", "500", "step is \"500\", expected a whole number from 0"},
      {"/seed", -1, "seed"},
      {"/config", 7, "config is 7, expected a text"},
      {"/model", OrderedJson::array(), "model is [], expected an object"},
      {"/model/type", 3, "model[\"type\"] is 3, expected a text"},
      {"/mesh", "x", "mesh is \"x\", expected an object"},
      {"/mesh/world_size", 5, "mesh is 2 x 2 for 5 ranks"},
      {"/mesh/shard_size", 0, "mesh.shard_size is 0"},
      {"/mesh/replicas", 4294967298LL, "mesh.replicas"},
      {"/omp_threads", -3, "omp_threads"},
      {"/val_loss", "low", "val_loss is \"low\""},
      {"/val_data", 128, "val_data is 128, expected a text"},
      {"/diverged", 1, "diverged is 1"},
      {"/retention", 2, "retention is 2, expected an object"},
      {"/retention/newest", -1, "retention.newest is -1"},
      {"/retention/newest", 4294967298LL, "retention.newest"},
      {"/retention/every", nullptr, "retention.every is missing"},
      {"/retention/best", 1.5, "retention.best is 1.5"},
      {"/block_bytes", 4096, "block_bytes"},
      {"/optimizer/state_kinds", "exp_avg", "optimizer.state_kinds is \"exp_avg\", expected a list"},
      {"/optimizer/state_dtypes", OrderedJson::array({"bf16"}), "optimizer.state_dtypes has 1 dtypes for 2 kinds of state"},
      {"/optimizer/state_dtypes/0", "int64", "optimizer.state_dtypes[0] is no dtype of optimizer state"},
      {"/units", nullptr, "units is missing"},
      {"/units/0/shard_size", 3, "units[0].shard_size"},
      {"/units/2/role", "gift", "units[2].role is 'gift'"},
      {"/units/0/role", "ignored", "units[0].role is ignored, with 2 tensors on 2 ranks"},
      {"/units/2/dtype", "int65", "units[2].dtype is no element type"},
      {"/units/2/dtype", "int32", "files[0].datasets[3].dtype is int64, expected int32"},
      {"/units/0/dtype", "bf16", "units[0].dtype is not fp32"},
      {"/units/2/shard_numel", 4, "units[2].shard_numel is 4 for a tensor of 3 elements"},
      {"/files/0/datasets/1/dtype", "bf16", "files[0].datasets[1].dtype is bf16, expected fp32"},
      {"/units/0/shard_numel", 0, "units[0].shard_numel"},
      {"/units/0/shard_numel", 18, "shard_numel is too small"},
      {"/units/0/shard_numel", 9223372036854775807LL, "units[0].shard_numel"},
      {"/units/0/parameters/0/shape", OrderedJson::array({0, 7}), "shape[0]"},
      {"/units/0/parameters/0/shape", OrderedJson::array({4294967296LL, 4294967296LL}), "larger than any memory"},
      {"/units/0/parameters/0/shape", OrderedJson::array(), "has 0 dims"},
      {"/units/0/parameters/0/shape", OrderedJson::array({1, 1, 1, 1, 1, 1}), "has 6 dims"},
      {"/units/0/parameters/1/name", "a.weight", "repeats the parameter a.weight"},
      {"/files", OrderedJson::array(), "files has 0 entries for 2 shard ranks"},
      {"/files/1/shard_rank", 2, "files[1].shard_rank is out of order"},
      {"/files/0/name", "../shard-0.h5", "files[0].name"},
      {"/files/0/name", "..", "files[0].name"},
      {"/files/0/name", std::string("a\0b", 3), "files[0].name"},
      {"/files/0/bytes", 200, "files[0].datasets[1].offset"},
      {"/files/0/rest_crc32c", "0000000G", "8 hexadecimal digits"},
      {"/files/0/rest_crc32c", "00000001 00000002", "not one checksum"},
      {"/files/0/datasets/0/unit", 3, "files[0].datasets[0].unit"},
      {"/files/0/datasets/0/kind", "exp", "files[0].datasets[0].kind"},
      {"/files/0/datasets/0/bytes", 84, "but a shard of that unit has 80 bytes"},
      {"/files/0/datasets/0/offset", 921, "files[0].datasets[0].offset is 921"},
      {"/files/0/datasets/0/offset", 101, "files[0].datasets[1].offset lies inside"},
      {"/files/0/datasets/1/offset", 179, "lies inside the dataset before it"},
      {"/files/0/datasets/1/kind", "master", "repeats the unit and kind"},
      {"/files/0/datasets/0/crc32c_blocks", "00000001 00000002", "has 2 checksums"},
      {"/files/0/datasets/0/crc32c_blocks", "00000001 ", "8 hexadecimal digits"},
      {"/files/0/datasets/0/crc32c_blocks", "", "has 0 checksums"},
      {"/files/1/datasets", OrderedJson::array(), "lacks the parameters of unit 0 (a)"},
      {"/files/1/datasets/0/unit", 1, "files[1].datasets[0]"},
      {"/index", nullptr, "index is missing"},
      {"/index/name", "other.h5", "index.name is not model.h5"},
      {"/index/bytes", -1, "index.bytes is -1"},
      {"/index/rest_crc32c", "", "not one checksum"},
      {"/tokenizer", nullptr, "tokenizer is missing"},
      {"/tokenizer", 1, "tokenizer is 1, expected an object"},
      {"/tokenizer/source", 1, "tokenizer.source is 1, expected a text"},
      {"/tokenizer/token_ids", OrderedJson::array(), "tokenizer.token_ids"},
      {"/tokenizer/token_ids/eos_token_id", "2", "eos_token_id is \"2\", expected a whole number"},
      {"/tokenizer/token_ids/eos_token_id/1", 2147483648LL, "eos_token_id[1] is 2147483648"},
      {"/tokenizer/files/0/name", "manifest.json", "tokenizer.files[0].name is no file of a tokenizer"},
      {"/tokenizer/files/0/name", "../tokenizer.json", "tokenizer.files[0].name is no file of a tokenizer"},
      {"/tokenizer/files/0/name", "merges.txt", "tokenizer.files[1].name stands twice"},
      {"/tokenizer/files/0/bytes", -1, "tokenizer.files[0].bytes is -1"},
      {"/tokenizer/files/0/bytes", 1LL << 40, "tokenizer.files[0].bytes makes more than"},
      {"/tokenizer/files/1/rest_crc32c", "0", "tokenizer.files[1].rest_crc32c"},
  };
  for (const BadValue& bad : cases) {
    OrderedJson json = example_json();
    const OrderedJson::json_pointer pointer(bad.pointer);
    if (bad.value.is_null()) {
      json[pointer.parent_pointer()].erase(pointer.back());
    } else {
      json[pointer] = bad.value;
    }
    const std::string text = error_of<DamagedCheckpointError>([&] { (void)parse_manifest(sign(json), "run/m.json"); });
    EXPECT_THAT(text, HasSubstr("run/m.json")) << bad.pointer;
    EXPECT_THAT(text, HasSubstr(bad.expected)) << bad.pointer;
  }
}

TEST(Manifest, AnotherFormatIsSaidToBeOne) {
  OrderedJson json = example_json();
  json["format_version"] = 6;
  EXPECT_THAT(error_of<CheckpointError>([&] { (void)parse_manifest(sign(json), "m.json"); }),
              AllOf(HasSubstr("format version 6"), HasSubstr("use a newer Mica")));
  json["format_version"] = 2;
  EXPECT_THAT(error_of<CheckpointError>([&] { (void)parse_manifest(sign(json), "m.json"); }), HasSubstr("use the older Mica"));
  json["format"] = "other";
  EXPECT_THAT(error_of<CheckpointError>([&] { (void)parse_manifest(sign(json), "m.json"); }), HasSubstr("not the manifest"));
  for (const char* text : {"", "{}", "[]", "null", "{\"a\":"}) EXPECT_THROW((void)parse_manifest(text, "m"), CheckpointError);
}

// They are nearly all of a large manifest.
TEST(Manifest, TheHeaderIsReadWithoutTheFiles) {
  Manifest m = example();
  m.config = ",\n \"files\": [\n \"x\"";
  std::string text = manifest_text(m);
  const std::size_t first = text.find("{\"name\":\"shard-0.h5\"");
  ASSERT_NE(first, std::string::npos);
  text[first] = '?';
  const std::size_t covered = text.rfind(",\n \"manifest_crc32c\"");
  text = fmt::format("{},\n \"manifest_crc32c\": \"{:08x}\"\n}}\n", text.substr(0, covered),
                     io::crc32c(text.data(), static_cast<std::int64_t>(covered)));
  EXPECT_THROW((void)parse_manifest(text, "m.json"), CheckpointError);
  const Manifest header = parse_manifest_header(text, "m.json");
  EXPECT_EQ(header.config, m.config);
  EXPECT_EQ(header.units.size(), m.units.size());
  EXPECT_EQ(header.tokenizer.files.size(), 2U);
  EXPECT_TRUE(header.files.empty());
}

TEST(Manifest, AMissingFolderAndAMissingManifestAreDifferentThings) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(error_of<CheckpointError>([&] { (void)read_manifest(folder / "absent"); }), HasSubstr("there is no checkpoint here"));
  EXPECT_THAT(error_of<DamagedCheckpointError>([&] { (void)read_manifest(folder.path()); }), HasSubstr("manifest.json"));
  test::make_unreadable(folder / "manifest.json");
  EXPECT_THAT(error_of<IoError>([&] { (void)read_manifest(folder.path()); }), HasSubstr("No such device or address")) << "it may be sound";
}

}  // namespace
}  // namespace mica::checkpoint
