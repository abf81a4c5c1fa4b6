// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <vector>

#include "mica/checkpoint/convert.hpp"
#include "mica/core/version.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/hdf5.hpp"
#include "mica/io/raw_file.hpp"

#include "../checksum_list.hpp"
#include "../parameter_reader.hpp"

namespace mica::checkpoint {
namespace {

namespace fs = std::filesystem;

struct Array {
  std::string parameter, kind;
  Shape shape;
  DType dtype;
  std::int64_t offset = 0;  ///< in the new file
};

std::vector<Array> arrays_of(const ParameterReader& reader, bool with_optimizer) {
  std::vector<std::string> kinds{std::string(kMasterKind)};
  if (with_optimizer) kinds.insert(kinds.end(), reader.manifest().state_kinds.begin(), reader.manifest().state_kinds.end());
  std::vector<Array> arrays;
  for (const std::string& kind : kinds) {
    for (const UnitEntry& unit : reader.manifest().units) {
      for (const fsdp::ParameterSpec& p : unit.parameters) {
        if (reader.has(p.name, kind)) arrays.push_back({p.name, kind, p.shape, reader.dtype(p.name, kind)});
      }
    }
  }
  return arrays;
}

/// Creates the file with its datasets allocated but not written.
void create_file(const std::string& path, const Manifest& manifest, std::vector<Array>& arrays) {
  io::Hdf5File file = io::Hdf5File::create(path);
  file.set_attribute("/", "format", "mica model");
  file.set_attribute("/", "mica_version", version());
  file.set_attribute("/", "run_id", manifest.run_id);
  file.set_attribute("/", "step", manifest.step);
  file.set_attribute("/", "config", manifest.config);
  for (Array& array : arrays) {
    const std::string name = (array.kind == kMasterKind ? "/" : "/optim/" + array.kind + "/") + array.parameter;
    array.offset = file.create_dataset(name, array.dtype, {array.shape.dims().begin(), array.shape.dims().end()}).file_offset();
  }
  file.close();
}

void write_arrays(const std::string& path, const std::vector<Array>& arrays, std::int64_t total, ParameterReader& reader,
                  const std::function<void(std::int64_t, std::int64_t)>& progress) {
  io::RawFile file = io::RawFile::open_for_writing(path);
  std::vector<std::byte> chunk(static_cast<std::size_t>(kBlockBytes));
  std::int64_t done = 0;
  for (const Array& array : arrays) {
    const std::int64_t numel = array.shape.numel();
    const std::int64_t element = dtype_bytes(array.dtype);
    for (std::int64_t begin = 0; begin < numel;) {
      const std::int64_t count = std::min(kBlockBytes / element, numel - begin);
      reader.read(array.parameter, array.kind, begin, count, chunk.data());
      file.write_at(array.offset + begin * element, chunk.data(), count * element);
      begin += count;
      done += count;
      if (progress) progress(done, total);
    }
  }
  reader.finish();
  file.sync();
  file.close();
}

}  // namespace

ConvertReport consolidate(const std::string& checkpoint, const std::string& out, bool with_optimizer, const ConvertOptions& options) {
  ParameterReader reader(checkpoint);
  std::vector<Array> arrays = arrays_of(reader, with_optimizer);
  ConvertReport report;
  report.num_files = 1;
  report.num_tensors = std::ssize(arrays);
  for (const Array& array : arrays) {
    report.numel += array.shape.numel();
    report.bytes += array.shape.numel() * dtype_bytes(array.dtype);
  }
  const std::string checksums = checksum_list_path(out);
  std::error_code error;
  io::check_new(out);
  require<ConfigError>(!fs::exists(checksums, error), "{}: exists already; nothing is overwritten: delete it or choose another name",
                       checksums);
  if (options.is_dry_run) return report;
  io::Publication output(out);
  try {
    io::writing_hdf5([&] { create_file(output.temporary(), reader.manifest(), arrays); });
    write_arrays(output.temporary(), arrays, report.numel, reader, options.progress);
    io::write_file_atomically(checksums, checksum_line(output.temporary(), fs::path(out).filename().string()));
    output.publish();
  } catch (...) {
    fs::remove(checksums, error);
    throw;
  }
  return report;
}

}  // namespace mica::checkpoint
