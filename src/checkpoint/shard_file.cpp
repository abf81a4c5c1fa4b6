// SPDX-License-Identifier: Apache-2.0
#include "shard_file.hpp"

#include <algorithm>

#include "mica/core/rounding.hpp"
#include "mica/core/version.hpp"
#include "mica/io/crc32c.hpp"
#include "mica/io/hdf5.hpp"
#include "mica/io/raw_file.hpp"

#include "block_workers.hpp"
#include "file_rest.hpp"
#include "piece_table.hpp"

namespace mica::checkpoint {
namespace {

PieceColumns piece_columns(const ShardContents& contents) {
  PieceColumns columns;
  for (const ShardSource& source : contents.sources) {
    const fsdp::ShardLayout& layout = *contents.units[static_cast<std::size_t>(source.unit)].layout;
    for (const fsdp::Piece& piece : layout.pieces(layout.shard_size() == 1 ? 0 : contents.shard_rank)) {
      columns.add(piece, layout.parameters()[piece.parameter], source.kind, dataset_path(source));
    }
  }
  return columns;
}

/// Describes /units/<i>, for people and other programs. Mica reads this from the manifest.
void write_unit_table(io::Hdf5File& file, const std::vector<SavedUnit>& units) {
  std::vector<std::string> names, roles;
  std::vector<std::int64_t> shard_numels, shard_sizes;
  for (const SavedUnit& unit : units) {
    names.push_back(unit.name);
    roles.emplace_back(unit_role_name(unit.role));
    shard_numels.push_back(unit.layout->shard_numel());
    shard_sizes.push_back(unit.layout->shard_size());
  }
  const auto n = static_cast<std::int64_t>(units.size());
  file.write_strings("/unit_table/name", names);
  file.write_strings("/unit_table/role", roles);
  file.create_dataset("/unit_table/shard_numel", DType::i64, {n}).write(shard_numels.data(), n * 8);
  file.create_dataset("/unit_table/shard_size", DType::i64, {n}).write(shard_sizes.data(), n * 8);
}

/// Creates the file with its tables, and with all datasets allocated but not written. @returns their places.
FileEntry create_file(const std::string& path, const ShardContents& contents) {
  FileEntry entry;
  entry.name = shard_file_name(contents.run_id, contents.step, contents.shard_rank);
  entry.shard_rank = contents.shard_rank;
  io::Hdf5File file = io::Hdf5File::create(path);
  file.set_attribute("/", "format", "mica checkpoint shard");
  file.set_attribute("/", "format_version", kFormatVersion);
  file.set_attribute("/", "mica_version", version());
  file.set_attribute("/", "run_id", contents.run_id);
  file.set_attribute("/", "step", contents.step);
  file.set_attribute("/", "shard_rank", std::int64_t{contents.shard_rank});
  write_unit_table(file, contents.units);
  write_piece_table(file, piece_columns(contents));
  for (const ShardSource& source : contents.sources) {
    const io::Hdf5Dataset dataset = file.create_dataset(dataset_path(source), source.dtype, {source.numel});
    const std::int64_t num_blocks = divide_up(dataset.bytes(), kBlockBytes);
    entry.datasets.push_back({dataset.name(), source.unit, source.kind, dataset.file_offset(), dataset.bytes(),
                              std::vector<std::uint32_t>(static_cast<std::size_t>(num_blocks)), source.dtype});
  }
  file.close();
  return entry;
}

struct BlockJob {
  std::size_t source;
  std::int64_t block;
};

/// Writes data directly to its place in the file, bypassing HDF5 and the page cache. Checksums are of the memory that is written.
void write_data(const std::string& path, const ShardContents& contents, FileEntry& entry) {
  std::vector<BlockJob> jobs;
  for (std::size_t s = 0; s < entry.datasets.size(); ++s) {
    for (std::int64_t b = 0; b < entry.datasets[s].num_blocks(); ++b) jobs.push_back({s, b});
  }
  struct Worker {
    io::RawFile file;
    BlockBuffer buffer;
  };
  std::vector<Worker> workers;
  for (int w = 0; w < kNumBlockWorkers; ++w) {
    workers.push_back({io::RawFile::open_for_writing(path, io::Caching::direct), BlockBuffer()});
  }
  run_block_workers(
      static_cast<std::int64_t>(jobs.size()), entry.bytes,
      [&](int w, std::int64_t j) {
        const BlockJob job = jobs[static_cast<std::size_t>(j)];
        DatasetEntry& dataset = entry.datasets[job.source];
        Worker& worker = workers[static_cast<std::size_t>(w)];
        const std::int64_t begin = job.block * kBlockBytes;
        const std::int64_t bytes = dataset.block_bytes(job.block);
        const std::int64_t element = dtype_bytes(dataset.dtype);
        const ShardSource& source = contents.sources[job.source];
        const std::byte* data = source.memory + begin;
        if (source.memory == nullptr) {
          source.read(begin / element, bytes / element, worker.buffer.data());
          data = worker.buffer.data();
        } else if (source.device != nullptr) {
          source.device->copy(worker.buffer.data(), data, bytes);
          data = worker.buffer.data();
        }
        dataset.block_crcs[static_cast<std::size_t>(job.block)] = io::crc32c(data, bytes);
        worker.file.write_at(dataset.offset + begin, data, bytes);
      },
      contents.pace);
  for (Worker& worker : workers) worker.file.close();
}

}  // namespace

std::string shard_file_name(const std::string& run_id, std::int64_t step, int shard_rank) {
  return fmt::format("shard-{}-{:08}-{:05}.h5", run_id, step, shard_rank);
}

std::string dataset_path(const ShardSource& source) { return fmt::format("/units/{}/{}", source.unit, source.kind); }

UnitEntry entry_of(const SavedUnit& unit) {
  const fsdp::ShardLayout& layout = *unit.layout;
  return {unit.name, layout.shard_size(), layout.shard_numel(), layout.parameters(), layout.name(), unit.role, unit.dtype};
}

FileEntry write_shard_file(const std::string& folder, const ShardContents& contents,
                           const std::function<void(std::string_view)>& at_point) {
  const std::string path = folder + "/" + shard_file_name(contents.run_id, contents.step, contents.shard_rank);
  FileEntry entry = io::writing_hdf5([&] { return create_file(path, contents); });
  if (at_point) at_point("metadata written");
  io::RawFile file = io::RawFile::open_for_writing(path);
  entry.bytes = file.file_bytes();
  file.reserve(entry.bytes);
  write_data(path, contents, entry);
  std::ranges::sort(entry.datasets, {}, &DatasetEntry::offset);
  entry.rest_crc = rest_crc(file, entry);
  file.sync();
  file.close();
  if (at_point) at_point("shard written");
  return entry;
}

}  // namespace mica::checkpoint
