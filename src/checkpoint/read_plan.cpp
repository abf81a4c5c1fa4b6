// SPDX-License-Identifier: Apache-2.0
#include "read_plan.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>

#include "mica/core/rounding.hpp"

#include "block_split.hpp"
#include "piece_index.hpp"
#include "stretches.hpp"

namespace mica::checkpoint {
namespace {

// --- messages between ranks ------------------------------------------------------------------------------------------

class TextWriter {
 public:
  void number(std::int64_t value) { text_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void text(std::string_view value) {
    number(std::ssize(value));
    text_ += value;
  }
  void rows(const std::vector<PackedRow>& rows) { text({reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(PackedRow)}); }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class TextReader {
 public:
  explicit TextReader(std::string_view text) : left_(text) {}
  [[nodiscard]] bool at_end() const { return left_.empty(); }
  std::int64_t number() {
    std::int64_t value = 0;
    invariant(left_.size() >= sizeof value, "a rank's message is whole");
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return value;
  }
  std::string_view text() {
    const auto bytes = static_cast<std::size_t>(number());
    const std::string_view value = left_.substr(0, bytes);
    left_.remove_prefix(value.size());
    return value;
  }
  std::vector<PackedRow> rows() {
    const std::string_view bytes = text();
    std::vector<PackedRow> rows(bytes.size() / sizeof(PackedRow));
    if (!rows.empty()) std::memcpy(rows.data(), bytes.data(), bytes.size());
    return rows;
  }

 private:
  std::string_view left_;
};

/// Blocks [first, last) of the file. Of a large file on many ranks the checksums are most of its entry, so each rank gets those of its
/// blocks. @param rows  of the file's table; those of the blocks' datasets are written
void write_part(TextWriter& writer, const FileEntry& file, const std::vector<PackedRow>& rows, std::int64_t first, std::int64_t last) {
  writer.text(file.name);
  for (const std::int64_t value : {std::int64_t{file.shard_rank}, file.bytes, std::int64_t{file.rest_crc}, first, last})
    writer.number(value);
  std::vector<bool> is_read;
  std::int64_t at = 0;  // of the dataset's first block
  writer.number(std::ssize(file.datasets));
  for (const DatasetEntry& dataset : file.datasets) {
    writer.text(dataset.path);
    writer.text(dataset.kind);
    for (const std::int64_t value : {dataset.unit, dataset.offset, dataset.bytes, static_cast<std::int64_t>(dataset.dtype)}) {
      writer.number(value);
    }
    const std::int64_t begin = std::clamp(first - at, std::int64_t{0}, dataset.num_blocks());
    const std::int64_t end = std::clamp(last - at, begin, dataset.num_blocks());
    writer.text(
        {reinterpret_cast<const char*>(dataset.block_crcs.data() + begin), static_cast<std::size_t>(end - begin) * sizeof(std::uint32_t)});
    is_read.push_back(begin < end);
    at += dataset.num_blocks();
  }
  std::vector<PackedRow> needed;
  std::ranges::copy_if(rows, std::back_inserter(needed),
                       [&](const PackedRow& row) { return is_read[static_cast<std::size_t>(row.dataset)]; });
  writer.rows(needed);
}

std::vector<FilePart> read_parts(TextReader reader) {
  std::vector<FilePart> parts;
  while (!reader.at_end()) {
    FilePart& part = parts.emplace_back();
    part.file.name = reader.text();
    part.file.shard_rank = static_cast<int>(reader.number());
    part.file.bytes = reader.number();
    part.file.rest_crc = static_cast<std::uint32_t>(reader.number());
    part.first = reader.number();
    part.last = reader.number();
    part.file.datasets.resize(static_cast<std::size_t>(reader.number()));
    std::int64_t at = 0;
    for (DatasetEntry& dataset : part.file.datasets) {
      dataset.path = reader.text();
      dataset.kind = reader.text();
      dataset.unit = reader.number();
      dataset.offset = reader.number();
      dataset.bytes = reader.number();
      dataset.dtype = static_cast<DType>(reader.number());
      dataset.block_crcs.resize(static_cast<std::size_t>(divide_up(dataset.bytes, kBlockBytes)));
      const std::string_view crcs = reader.text();
      const std::int64_t begin = std::clamp(part.first - at, std::int64_t{0}, dataset.num_blocks());
      if (!crcs.empty()) std::memcpy(dataset.block_crcs.data() + begin, crcs.data(), crcs.size());
      at += dataset.num_blocks();
    }
    part.rows = reader.rows();
    std::ranges::sort(part.rows, {}, [](const PackedRow& r) { return std::pair(r.dataset, r.offset); });
  }
  return parts;
}

// --- who reads what --------------------------------------------------------------------------------------------------

using Tables = std::vector<std::vector<PackedRow>>;  // by file

/// Each table is read by one rank; rank 0 gets all of them. @collective
Tables gather_tables(const ReadRequest& request) {
  const HostComm& comm = request.comm;
  const std::vector<FileEntry>& files = request.manifest.files;
  const auto num_ranks = static_cast<std::size_t>(comm.num_ranks());
  const std::string mine = comm.from_first_rank_to_each([&] {
    std::vector<TextWriter> writers(num_ranks);
    for (std::size_t f = 0; f < files.size(); ++f) write_part(writers[f % num_ranks], files[f], {}, 0, 0);
    std::vector<std::string> to_each;
    for (TextWriter& writer : writers) to_each.push_back(writer.take());
    return to_each;
  });
  const std::vector<std::string> found = comm.to_first_rank([&] {
    TextWriter writer;
    for (const FilePart& part : read_parts(TextReader(mine))) {
      writer.number(part.file.shard_rank);
      writer.rows(read_piece_table(request.folder, request.manifest.units, part.file));
    }
    return writer.take();
  });
  Tables tables(files.size());
  for (const std::string& text : found) {
    for (TextReader reader(text); !reader.at_end();) {
      const auto file = static_cast<std::size_t>(reader.number());
      tables.at(file) = reader.rows();
    }
  }
  return tables;
}

/// The beginning of rank 0's message to a rank: the kinds that the checkpoint has. The rank's parts follow.
TextWriter writer_with(const std::string& kinds) {
  TextWriter writer;
  writer.text(kinds);
  return writer;
}

/// On rank 0: the replicas of a shard each read a part of its file. Without any sharded unit all ranks read parts of the first one: the
/// others are empty.
std::vector<std::string> split_among_replicas(const ReadRequest& request, const std::string& kinds) {
  const MeshGeometry& geometry = request.mesh.geometry();
  const bool is_sharded = std::ranges::any_of(request.manifest.units, [](const UnitEntry& unit) { return unit.shard_size > 1; });
  std::vector<std::string> to_each;
  for (std::size_t r = 0; r < request.mesh_ranks.size(); ++r) {
    const int mesh_rank = request.mesh_ranks[r];
    const FileEntry& file = request.manifest.files[is_sharded ? static_cast<std::size_t>(geometry.shard_rank(mesh_rank)) : 0];
    const std::int64_t part = is_sharded ? geometry.replica_rank(mesh_rank) : static_cast<std::int64_t>(r);
    const std::int64_t parts = is_sharded ? geometry.replicas : std::ssize(request.mesh_ranks);
    const std::int64_t blocks = num_blocks(file);
    TextWriter writer = writer_with(kinds);
    write_part(writer, file, {}, blocks * part / parts, blocks * (part + 1) / parts);
    to_each.push_back(writer.take());
  }
  return to_each;
}

/// On rank 0: divides the blocks of all files, in order, into equal parts.
std::vector<std::string> split_among_all(const ReadRequest& request, const Tables& tables, const std::string& kinds) {
  const std::vector<FileEntry>& files = request.manifest.files;
  std::vector<std::int64_t> blocks;
  for (const FileEntry& file : files) blocks.push_back(num_blocks(file));
  std::vector<std::string> to_each;
  for (const std::vector<BlockRange>& part : split_blocks(blocks, request.comm.num_ranks())) {
    TextWriter writer = writer_with(kinds);
    for (const BlockRange& range : part) write_part(writer, files[range.file], tables[range.file], range.first, range.last);
    to_each.push_back(writer.take());
  }
  return to_each;
}

/// Unit and kind of every dataset. @throws DamagedCheckpointError if the files differ in those of sharded units.
std::string kinds_text(const Manifest& manifest, const std::string& folder) {
  const auto kinds_of = [&](const FileEntry& file) {
    std::set<std::pair<std::int64_t, std::string>> kinds;
    for (const DatasetEntry& d : file.datasets) {
      if (manifest.units[static_cast<std::size_t>(d.unit)].shard_size > 1) kinds.emplace(d.unit, d.kind);
    }
    return kinds;
  };
  const auto expected = kinds_of(manifest.files.front());
  for (const FileEntry& file : manifest.files) {
    require<DamagedCheckpointError>(kinds_of(file) == expected, "{}/{}: has other datasets than {}", folder, file.name,
                                    manifest.files.front().name);
  }
  TextWriter writer;
  for (const DatasetEntry& d : manifest.files.front().datasets) {
    writer.number(d.unit);
    writer.text(d.kind);
  }
  return writer.take();
}

// --- destinations ----------------------------------------------------------------------------------------------------

/// The unit and the shard rank of every element of the model's parameters.
struct Places {
  std::vector<std::vector<int>> ranks_of_shard;  // ranks of the HostComm
  std::vector<int> all_ranks;
  struct Parameter {
    std::size_t unit;
    Stretches<int> shards;  // places are shard ranks
  };
  std::map<std::string, Parameter> parameters;

  explicit Places(const ReadRequest& request) : ranks_of_shard(static_cast<std::size_t>(request.mesh.shard_size())) {
    for (int r = 0; r < request.comm.num_ranks(); ++r) {
      all_ranks.push_back(r);
      const int mesh_rank = request.mesh_ranks[static_cast<std::size_t>(r)];
      ranks_of_shard[static_cast<std::size_t>(request.mesh.geometry().shard_rank(mesh_rank))].push_back(r);
    }
  }

  void add_pieces(const std::vector<SavedUnit>& units) {
    for (std::size_t u = 0; u < units.size(); ++u) {
      for (int s = 0; s < units[u].layout->shard_size(); ++s) {
        for (const fsdp::Piece& p : units[u].layout->pieces(s)) {
          Parameter& parameter = parameters[units[u].layout->parameters()[p.parameter].name];
          parameter.unit = u;
          const bool is_cut_alike = parameter.shards.add(p, s);
          invariant(is_cut_alike, "a layout cuts a parameter along one dim");
        }
      }
    }
    for (auto& [name, parameter] : parameters) parameter.shards.sort();
  }

  /// The ranks that hold this shard: all, if the unit is not sharded.
  [[nodiscard]] const std::vector<int>* ranks(const SavedUnit& unit, int shard) const {
    return unit.layout->shard_size() == 1 ? &all_ranks : &ranks_of_shard[static_cast<std::size_t>(shard)];
  }
};

using Visit = std::function<void(const Destination&)>;

/// Elements [begin, end) of a dataset, by the table of pieces.
void visit_rows(const ReadRequest& request, const Places& places, const FilePart& part, const DatasetEntry& dataset, std::int64_t begin,
                std::int64_t end, const Visit& visit) {
  const std::vector<fsdp::ParameterSpec>& saved = request.manifest.units[static_cast<std::size_t>(dataset.unit)].parameters;
  const std::int64_t index = &dataset - part.file.datasets.data();
  for (const PackedRow& row : std::ranges::equal_range(part.rows, index, {}, &PackedRow::dataset)) {
    const fsdp::ParameterSpec& spec = saved[static_cast<std::size_t>(row.parameter)];
    const auto found = places.parameters.find(spec.name);
    if (found == places.parameters.end()) continue;  // a buffer that this model does not have
    const Places::Parameter& parameter = found->second;
    const SavedUnit& unit = request.units[parameter.unit];
    fsdp::for_each_stored(row.piece(spec.shape), begin, end, [&](const fsdp::Run& saved_run) {
      parameter.shards.for_each(saved_run.begin, saved_run.end, [&](const fsdp::Run& run, int shard) {
        const std::int64_t from = saved_run.offset + (run.begin - saved_run.begin);
        visit({{from, from + run.numel(), run.offset}, parameter.unit, places.ranks(unit, shard)});
      });
    });
  }
}

}  // namespace

Manifest share_manifest(const std::string& folder, const HostComm& comm) {
  Manifest manifest;
  const std::string text = comm.from_root(0, [&] {
    manifest = read_manifest(folder);
    Manifest header = manifest;
    header.files.clear();
    header.index = {};
    return manifest_text(header);
  });
  return comm.rank() == 0 ? manifest : parse_manifest_header(text, folder + "/" + std::string(kManifestName));
}

ReadPlan make_read_plan(const ReadRequest& request) {
  const HostComm& comm = request.comm;
  ReadPlan plan;
  const auto take = [&](const std::string& message) {
    TextReader reader(message);
    for (TextReader kinds(reader.text()); !kinds.at_end();) {
      const UnitEntry& unit = request.manifest.units.at(static_cast<std::size_t>(kinds.number()));
      const std::string kind(kinds.text());
      for (const fsdp::ParameterSpec& p : unit.parameters) plan.has_of.emplace(p.name, kind);
    }
    plan.parts = read_parts(reader);
  };
  const auto places = std::make_shared<Places>(request);
  if (request.is_of_this_mesh) {
    take(comm.from_first_rank_to_each([&] { return split_among_replicas(request, kinds_text(request.manifest, request.folder)); }));
    plan.for_each_destination = [&request_units = request.units, places](const FilePart& part, const DatasetEntry& dataset,
                                                                         std::int64_t begin, std::int64_t end, const Visit& visit) {
      const auto unit = static_cast<std::size_t>(dataset.unit);
      visit({{begin, end, begin}, unit, places->ranks(request_units[unit], part.file.shard_rank)});
    };
    return plan;
  }
  const Tables tables = gather_tables(request);
  take(comm.from_first_rank_to_each([&] {
    const PieceIndex checked(request.manifest, tables, request.folder);
    return split_among_all(request, tables, kinds_text(request.manifest, request.folder));
  }));
  places->add_pieces(request.units);
  plan.for_each_destination = [request, places](const FilePart& part, const DatasetEntry& dataset, std::int64_t begin, std::int64_t end,
                                                const Visit& visit) { visit_rows(request, *places, part, dataset, begin, end, visit); };
  return plan;
}

}  // namespace mica::checkpoint
