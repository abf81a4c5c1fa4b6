// SPDX-License-Identifier: Apache-2.0
// Tables of pieces must name every element exactly once.
#include "../../../src/checkpoint/piece_index.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

namespace mica::checkpoint {
namespace {

using ::testing::HasSubstr;
using Tables = std::vector<std::vector<PackedRow>>;

/// A unit of "w" [4, 3] and "b" [2] on two shard ranks of 8 elements.
Manifest two_shards() {
  Manifest manifest;
  manifest.shard_size = 2;
  UnitEntry unit{.name = "u", .shard_size = 2, .shard_numel = 8, .parameters = {}, .layout = "flat"};
  unit.parameters = {{"w", Shape{4, 3}}, {"b", Shape{2}}};
  manifest.units = {unit};
  for (const int rank : {0, 1}) {
    FileEntry file;
    file.name = fmt::format("shard-{}.h5", rank);
    file.shard_rank = rank;
    DatasetEntry dataset;
    dataset.path = "/units/0/master";
    dataset.kind = "master";
    dataset.bytes = 32;
    file.datasets = {dataset};
    manifest.files.push_back(file);
  }
  return manifest;
}

PackedRow row(std::int64_t parameter, std::int64_t begin, std::int64_t end, std::int64_t offset, std::int64_t dim = fsdp::Piece::kFlat) {
  return {.dataset = 0, .parameter = parameter, .dim = dim, .begin = begin, .end = end, .offset = offset};
}

std::string refusal_of(const Tables& tables) {
  const Manifest manifest = two_shards();
  try {
    const PieceIndex index(manifest, tables, "step-1");
  } catch (const DamagedCheckpointError& error) {
    return error.what();
  }
  return "";
}

TEST(PieceIndex, NamesEveryElementOnce) {
  EXPECT_EQ(refusal_of({{row(0, 0, 8, 0)}, {row(0, 8, 12, 0), row(1, 0, 2, 4)}}), "");
  EXPECT_THAT(refusal_of({{row(0, 0, 8, 0)}, {row(0, 7, 12, 0), row(1, 0, 2, 5)}}), HasSubstr("name elements 7 to 7 of w (master) twice"));
  EXPECT_THAT(refusal_of({{row(0, 0, 7, 0)}, {row(0, 8, 12, 0), row(1, 0, 2, 4)}}),
              HasSubstr("name elements 7 to 7 of w (master) in no file"));
  EXPECT_THAT(refusal_of({{row(0, 1, 8, 0)}, {row(0, 8, 12, 0), row(1, 0, 2, 4)}}),
              HasSubstr("name elements 0 to 0 of w (master) in no file"));
  EXPECT_THAT(refusal_of({{row(0, 0, 8, 0)}, {row(0, 8, 11, 0), row(1, 0, 2, 4)}}), HasSubstr("name 11 of the 12 elements of w (master)"));
  EXPECT_THAT(refusal_of({{row(0, 0, 8, 0)}, {row(0, 8, 12, 0)}}), HasSubstr("no shard file's table of pieces names master of b"));
  EXPECT_THAT(refusal_of({{row(0, 0, 2, 0, 0)}, {row(0, 2, 3, 0, 1), row(1, 0, 2, 4)}}),
              HasSubstr("along dim 1, other rows along another one"));
}

TEST(PieceIndex, FindsAnElementsPlace) {
  const Manifest manifest = two_shards();
  const PieceIndex index(manifest, {{row(0, 0, 8, 0)}, {row(0, 8, 12, 1), row(1, 0, 2, 5)}}, "step-1");
  std::vector<std::string> found;
  index.for_each("w", "master", 6, 10, [&](const fsdp::Run& run, const PieceIndex::Place& place) {
    found.push_back(fmt::format("{}-{} {} at {}", run.begin, run.end, place.file->name, run.offset));
  });
  EXPECT_THAT(found, ::testing::ElementsAre("6-8 shard-0.h5 at 6", "8-10 shard-1.h5 at 1"));
}

}  // namespace
}  // namespace mica::checkpoint
