// SPDX-License-Identifier: Apache-2.0
// docs/files.md names every field of the JSON that a run writes, and no other.
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "mica/checkpoint/manifest.hpp"
#include "mica/data/token_file.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/train/metrics.hpp"
#include "mica/train/run_lock.hpp"

#include "../../../src/train/start_record.hpp"
#include "support/document.hpp"
#include "support/temporary_folder.hpp"

namespace mica::train {
namespace {

using ::testing::UnorderedElementsAreArray;

constexpr const char* kDocument = "files.md";

std::vector<std::string> keys_of(const nlohmann::json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

/// "mesh.world_size", "units[].name": objects that are maps from names of the model or the run have no fields of their own.
void append_fields(const nlohmann::json& json, const std::string& prefix, std::set<std::string>& fields) {
  static const std::set<std::string> kMaps{"scalars", "model", "optimizer.parameter_steps", "tokenizer.token_ids"};
  if (json.is_object() && !kMaps.contains(prefix)) {
    for (const auto& [key, value] : json.items()) append_fields(value, prefix.empty() ? key : prefix + "." + key, fields);
  } else if (json.is_array() && !json.empty() && json.front().is_object()) {
    append_fields(json.front(), prefix + "[]", fields);
  } else {
    fields.insert(prefix);
  }
}

TEST(FilesDoc, MetricsHaveTheseFields) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsFile metrics(path, [](const std::string& text) { FAIL() << text; });
  metrics.write({.step = 1, .split = StepSplit{}, .gflop_per_s = 1, .loss_scale = 1024});  // fp16's row has the most fields
  metrics.write_eval(1, 5, 6);
  metrics.write_started({.step = 1});
  metrics.write_ranks(1, {{}, {}});
  metrics.write_memory(1, {}, 2);
  metrics.write_checkpoint(1, 2, 3, 4);
  metrics.write_bad_step(1, "a", "skip");
  metrics.write_rolled_back(1, 2, "a");
  metrics.write_resumed({.from = 1, .checkpoint = "a", .num_ranks = 2, .set_aside = "b"});
  std::istringstream lines(io::read_file(path));
  std::set<std::string> events;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    const std::string event = row.at("event");
    events.insert(event);
    EXPECT_THAT(test::names_in_table(kDocument, "### " + event), UnorderedElementsAreArray(keys_of(row))) << event;
  }
  EXPECT_EQ(events.size(), 9u);
}

TEST(FilesDoc, ARunsLockHasTheseFields) {
  const test::TemporaryFolder folder;
  const RunLock lock = RunLock::acquire(folder.path());
  const auto json = nlohmann::json::parse(io::read_file(folder / "run.lock"));
  EXPECT_THAT(test::names_in_table(kDocument, "## run.lock"), UnorderedElementsAreArray(keys_of(json)));
}

TEST(FilesDoc, ARunsStartsHaveTheseFields) {
  const test::TemporaryFolder folder;
  StartRecord(folder.path()).begin(3, "config");
  const auto json = nlohmann::json::parse(io::read_file(folder / "starts.json"));
  EXPECT_THAT(test::names_in_table(kDocument, "## starts.json"), UnorderedElementsAreArray(keys_of(json)));
}

TEST(FilesDoc, AManifestHasTheseFields) {
  checkpoint::Manifest manifest;
  manifest.parent = checkpoint::CheckpointId{"1a2b3c4d", 10};
  manifest.state_kinds = {"exp_avg"};
  manifest.units.push_back({.name = "root", .parameters = {{"a", Shape{2}}}});
  manifest.files.push_back({.name = "shard.h5", .datasets = {{.path = "/units/0/master", .kind = "master", .block_crcs = {1}}}});
  manifest.retention = checkpoint::Retention(2);
  manifest.tokenizer.files.push_back({.name = "tokenizer.json", .datasets = {}});
  std::set<std::string> fields;
  append_fields(nlohmann::json::parse(checkpoint::manifest_text(manifest)), "", fields);
  EXPECT_THAT(test::names_in_table(kDocument, "### manifest.json"), UnorderedElementsAreArray(fields));
  EXPECT_EQ(checkpoint::kFormatVersion, 5) << "docs/files.md, manifest.json, names the format's version";
}

TEST(FilesDoc, TokenFilesHaveTheseAttributes) {
  EXPECT_THAT(test::names_in_table(kDocument, "## Token files"),
              UnorderedElementsAreArray(
                  {data::kVocabSizeAttribute, data::kTokenizerAttribute, data::kTokenizerHashAttribute, data::kTokensChecksumAttribute}));
}

}  // namespace
}  // namespace mica::train
