// SPDX-License-Identifier: Apache-2.0
// The table of pieces of each of a checkpoint's shard files, as its columns come out of HDF5: of any content. What is
// read makes an index whose every element lies inside its dataset.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

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

/// A row is nine bytes: which parameter, kind and dataset (one past the known: any text), how the shape is wrong (0: it
/// is right), dim, begin, end, offset as signed bytes, 127 standing for the eight bytes behind it; then how many values
/// of the columns are missing or too many (0: none).
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}

  std::uint8_t take() { return at_ == end_ ? std::uint8_t{0} : *at_++; }
  std::int64_t number() {
    const auto small = static_cast<std::int8_t>(take());
    if (small != 127) return small;
    std::uint64_t large = 0;
    for (int i = 0; i < 8; ++i) large = large << 8 | take();
    return static_cast<std::int64_t>(large);
  }
  std::string text(std::initializer_list<const char*> known) {
    const std::size_t which = take();
    return which < known.size() ? known.begin()[which] : std::string(1, static_cast<char>(which));
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

PieceColumns columns_from(Bytes& bytes) {
  PieceColumns columns;
  const int num_rows = bytes.take() % 16;
  for (int i = 0; i < num_rows; ++i) {
    columns.parameters.push_back(bytes.text({"w", "b", "c"}));
    columns.kinds.push_back(bytes.text({"master", "exp_avg"}));
    columns.datasets.push_back(bytes.text({"/units/0/master", "/units/0/exp_avg", "/units/1/master"}));
    const mica::Shape shape = columns.parameters.back() == "w"   ? mica::Shape{4, 6}
                              : columns.parameters.back() == "b" ? mica::Shape{3}
                                                                 : mica::Shape{5};
    const std::size_t wrong = bytes.take();
    for (std::size_t d = 0; d < mica::Shape::kMaxDims; ++d) {
      columns.shapes.push_back(wrong == d + 1 ? bytes.number() : d < shape.num_dims() ? shape[d] : 0);
    }
    columns.dims.push_back(bytes.number());
    columns.begins.push_back(bytes.number());
    columns.ends.push_back(bytes.number());
    columns.offsets.push_back(bytes.number());
  }
  const int odd = bytes.take();
  if (odd == 1) columns.offsets.push_back(0);
  if (odd == 2 && num_rows > 0) columns.shapes.pop_back();
  return columns;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Manifest manifest = two_files();
  Bytes bytes(data, size);
  try {
    std::vector<std::vector<PackedRow>> tables;
    for (const FileEntry& file : manifest.files) tables.push_back(rows_of(columns_from(bytes), manifest.units, file, "shard.h5"));
    const PieceIndex index(manifest, tables, "step-1");
    for (const UnitEntry& unit : manifest.units) {
      for (const auto& p : unit.parameters) {
        std::int64_t at = 0;
        const auto visit = [&](const mica::fsdp::Run& run, const PieceIndex::Place& place) {
          mica::invariant(run.begin == at && run.end > at && run.offset >= 0 && run.offset + run.numel() <= place.dataset->numel(),
                          "every element lies in its dataset");
          at = run.end;
        };
        index.for_each(p.name, "master", 0, p.shape.numel(), visit);
        mica::invariant(at == p.shape.numel(), "all elements are visited");
      }
    }
  } catch (const mica::CheckpointError&) {
  }
  return 0;
}
