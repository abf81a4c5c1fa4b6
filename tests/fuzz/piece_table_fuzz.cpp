// The table of pieces of each of a checkpoint's shard files, as its columns come out of HDF5: of any content. What is
// read makes an index whose every element lies inside its dataset.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <fuzzer/FuzzedDataProvider.h>

#include "../../src/checkpoint/piece_index.hpp"

namespace {

using namespace mica::checkpoint;

Manifest two_files() {
  Manifest m;
  m.world_size = m.shard_size = 2;
  m.state_kinds = {"exp_avg"};
  m.units = {{"a", 2, 20, {{"w", mica::Shape{4, 6}}, {"b", mica::Shape{3}}}},
             {"c", 1, 5, {{"c", mica::Shape{5}}}, "flat", UnitRole::buffer, mica::DType::i64}};
  for (int f = 0; f < 2; ++f) {
    FileEntry file;
    file.name = "shard";
    file.shard_rank = f;
    file.datasets = {{"/units/0/master", 0, "master", 0, 80, {1}}, {"/units/0/exp_avg", 0, "exp_avg", 80, 80, {1}}};
    if (f == 0) file.datasets.push_back({"/units/1/master", 1, "master", 160, 40, {1}, mica::DType::i64});
    m.files.push_back(file);
  }
  return m;
}

PieceColumns columns_from(FuzzedDataProvider& data) {
  const auto text = [&](std::initializer_list<const char*> known) -> std::string {
    const auto which = data.ConsumeIntegralInRange<std::size_t>(0, known.size());
    return which < known.size() ? known.begin()[which] : data.ConsumeRandomLengthString(8);
  };
  const auto number = [&]() -> std::int64_t {
    return data.ConsumeProbability<float>() < 0.95F ? data.ConsumeIntegralInRange<std::int64_t>(-2, 40)
                                                    : data.ConsumeIntegral<std::int64_t>();
  };
  PieceColumns columns;
  const int num_rows = data.ConsumeIntegralInRange<int>(0, 12);
  for (int i = 0; i < num_rows; ++i) {
    columns.parameters.push_back(text({"w", "b", "c"}));
    columns.kinds.push_back(text({"master", "exp_avg"}));
    columns.datasets.push_back(text({"/units/0/master", "/units/0/exp_avg", "/units/1/master"}));
    const mica::Shape shape = columns.parameters.back() == "w"   ? mica::Shape{4, 6}
                              : columns.parameters.back() == "b" ? mica::Shape{3}
                                                                 : mica::Shape{5};
    for (std::size_t d = 0; d < mica::Shape::kMaxDims; ++d) {
      columns.shapes.push_back(data.ConsumeBool() || data.ConsumeBool() ? (d < shape.num_dims() ? shape[d] : 0)
                                                                        : number());
    }
    columns.dims.push_back(number() % 4);
    columns.begins.push_back(number());
    columns.ends.push_back(number());
    columns.offsets.push_back(number());
  }
  if (data.ConsumeIntegralInRange<int>(0, 20) == 0) columns.offsets.push_back(0);
  return columns;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const Manifest manifest = two_files();
  FuzzedDataProvider data(bytes, size);
  try {
    std::vector<std::vector<PieceRow>> tables;
    for (const FileEntry& file : manifest.files)
      tables.push_back(rows_of(columns_from(data), manifest, file, "shard.h5"));
    const PieceIndex index(manifest, tables, "step-1");
    for (const UnitEntry& unit : manifest.units) {
      for (const auto& p : unit.parameters) {
        std::int64_t at = 0;
        index.for_each(p.name, "master", 0, p.shape.numel(), [&](const PieceIndex::Extent& part) {
          mica::invariant(part.begin == at && part.end > at && part.offset >= 0 &&
                              part.offset + (part.end - part.begin) <= part.dataset->numel(),
                          "every element lies in its dataset");
          at = part.end;
        });
        mica::invariant(at == p.shape.numel(), "all elements are visited");
      }
    }
  } catch (const mica::CheckpointError&) {
  }
  return 0;
}
