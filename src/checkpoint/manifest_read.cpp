// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <limits>
#include <set>

#include "mica/checkpoint/manifest.hpp"
#include "mica/core/rounding.hpp"
#include "mica/io/json.hpp"
#include "mica/io/path_check.hpp"
#include "mica/tensor/host_math.hpp"

#include "manifest_trailer.hpp"
#include "token_ids.hpp"
#include "tokenizer_files.hpp"

namespace mica::checkpoint {
namespace {

using io::JsonValue;
constexpr std::int64_t kMax = JsonValue::kMax;

int small_integer(const JsonValue& value, int lowest) { return static_cast<int>(value.integer(lowest, std::numeric_limits<int>::max())); }

/// Applies read(value) to each value of an object, and keeps the results by key.
template <class Read>
auto map_of(const JsonValue& object, const Read& read) {
  std::map<std::string, decltype(read(object))> map;
  object.for_each_key([&](const std::string& key, const JsonValue& value) { map[key] = read(value); });
  return map;
}

std::vector<std::uint32_t> crcs(const JsonValue& value) {
  const std::string all = value.text();
  std::vector<std::uint32_t> list;
  for (std::size_t at = 0; at < all.size(); at += 9) {
    const std::string one = all.substr(at, 8);
    const bool ends_well = at + 8 == all.size() || (at + 9 < all.size() && all[at + 8] == ' ');
    if (one.size() != 8 || one.find_first_not_of("0123456789abcdef") != std::string::npos || !ends_well) {
      value.fail(fmt::format("has no checksum of 8 hexadecimal digits at character {}", at));
    }
    list.push_back(static_cast<std::uint32_t>(std::stoul(one, nullptr, 16)));
  }
  return list;
}

std::uint32_t crc(const JsonValue& value) {
  const std::vector<std::uint32_t> one = crcs(value);
  if (one.size() != 1) value.fail("is not one checksum");
  return one[0];
}

Shape parse_shape(const JsonValue& reader) {
  std::vector<std::int64_t> dims;
  std::int64_t numel = 1;
  reader.for_each([&](const JsonValue& each) {
    dims.push_back(each.integer(1));
    if (dims.back() > kMax / 8 / numel) each.fail("makes the parameter larger than any memory");
    numel *= dims.back();
  });
  if (dims.empty() || dims.size() > Shape::kMaxDims) reader.fail(fmt::format("has {} dims, expected 1 to 5", dims.size()));
  return Shape(dims);
}

UnitRole parse_role(const JsonValue& reader) {
  const std::string name = reader.text();
  for (const UnitRole role : {UnitRole::unit, UnitRole::ignored, UnitRole::buffer}) {
    if (name == unit_role_name(role)) return role;
  }
  reader.fail(fmt::format("is '{}', expected unit, ignored or buffer", name));
}

DType parse_dtype(const JsonValue& reader) {
  try {
    return dtype_from_name(reader.text());
  } catch (const ConfigError& e) {
    reader.fail(fmt::format("is no element type: {}", e.what()));
  }
}

UnitEntry parse_unit(const JsonValue& reader, int mesh_shard_size) {
  UnitEntry unit;
  unit.name = reader["name"].text();
  unit.shard_size = small_integer(reader["shard_size"], 1);
  if (unit.shard_size != 1 && unit.shard_size != mesh_shard_size) {
    reader["shard_size"].fail(fmt::format("is {}, expected 1 or the mesh's {}", unit.shard_size, mesh_shard_size));
  }
  unit.shard_numel = reader["shard_numel"].integer(1, kMax / 8 / unit.shard_size);
  reader["parameters"].for_each([&](const JsonValue& each) {
    unit.parameters.push_back({each["name"].text(), parse_shape(each["shape"])});
  });
  unit.layout = reader["layout"].text();
  unit.role = parse_role(reader["role"]);
  unit.dtype = parse_dtype(reader["dtype"]);
  if (unit.is_whole() && (unit.shard_size != 1 || unit.parameters.size() != 1)) {
    reader["role"].fail(fmt::format("is {}, with {} tensors on {} ranks: expected one tensor, whole in one file", unit_role_name(unit.role),
                                    unit.parameters.size(), unit.shard_size));
  }
  if (unit.is_whole() && unit.shard_numel != unit.parameters[0].shape.numel()) {
    reader["shard_numel"].fail(fmt::format("is {} for a tensor of {} elements", unit.shard_numel, unit.parameters[0].shape.numel()));
  }
  if (!unit.is_whole() && unit.dtype != DType::f32) reader["dtype"].fail("is not fp32: units are stored in fp32");
  std::int64_t numel = 0;
  for (const fsdp::ParameterSpec& p : unit.parameters) {
    numel += p.shape.numel();
    if (numel > unit.shard_numel * unit.shard_size) {
      reader["shard_numel"].fail(fmt::format("is too small for the unit's parameters (at {})", p.name));
    }
  }
  return unit;
}

DatasetEntry parse_dataset(const JsonValue& reader, const Manifest& manifest, std::int64_t file_bytes) {
  DatasetEntry dataset;
  dataset.path = reader["path"].text();
  dataset.unit = reader["unit"].integer(0, static_cast<std::int64_t>(manifest.units.size()) - 1);
  dataset.kind = reader["kind"].text();
  dataset.bytes = reader["bytes"].integer(0, file_bytes);
  dataset.offset = reader["offset"].integer(0, file_bytes - dataset.bytes);
  dataset.block_crcs = crcs(reader["crc32c_blocks"]);
  const UnitEntry& unit = manifest.units[static_cast<std::size_t>(dataset.unit)];
  dataset.dtype = parse_dtype(reader["dtype"]);
  if (const DType expected = manifest.dtype_of(unit, dataset.kind); dataset.dtype != expected) {
    reader["dtype"].fail(fmt::format("is {}, expected {}", dtype_name(dataset.dtype), dtype_name(expected)));
  }
  const std::int64_t expected_bytes = unit.shard_numel * dtype_bytes(dataset.dtype);
  if (dataset.bytes != expected_bytes) {
    reader["bytes"].fail(fmt::format("is {}, but a shard of that unit has {} bytes", dataset.bytes, expected_bytes));
  }
  if (dataset.num_blocks() != divide_up(dataset.bytes, kBlockBytes)) {
    reader["crc32c_blocks"].fail(fmt::format("has {} checksums for {} bytes", dataset.num_blocks(), dataset.bytes));
  }
  if (dataset.kind != kMasterKind && std::ranges::find(manifest.state_kinds, dataset.kind) == manifest.state_kinds.end()) {
    reader["kind"].fail(fmt::format("is '{}', expected master or one of optimizer.state_kinds", dataset.kind));
  }
  return dataset;
}

FileEntry parse_file(const JsonValue& reader, const Manifest& manifest) {
  FileEntry file;
  file.name = reader["name"].text();
  if (!io::is_bare_name(file.name)) reader["name"].fail("is not a file name without a folder");
  file.shard_rank = small_integer(reader["shard_rank"], 0);
  file.bytes = reader["bytes"].integer(0);
  file.rest_crc = crc(reader["rest_crc32c"]);
  std::set<std::pair<std::int64_t, std::string>> seen;
  reader["datasets"].for_each([&](const JsonValue& each) {
    DatasetEntry dataset = parse_dataset(each, manifest, file.bytes);
    const UnitEntry& unit = manifest.units[static_cast<std::size_t>(dataset.unit)];
    if (unit.shard_size == 1 && file.shard_rank != 0) each["unit"].fail("is not sharded: only shard_rank 0 holds it");
    if (!seen.emplace(dataset.unit, dataset.kind).second) each.fail("repeats the unit and kind of another dataset");
    if (!file.datasets.empty() && dataset.offset < file.datasets.back().offset + file.datasets.back().bytes) {
      each["offset"].fail("lies inside the dataset before it");
    }
    file.datasets.push_back(std::move(dataset));
  });
  for (std::size_t u = 0; u < manifest.units.size(); ++u) {
    const bool is_expected = manifest.units[u].shard_size > 1 || file.shard_rank == 0;
    if (is_expected && !seen.contains({static_cast<std::int64_t>(u), std::string(kMasterKind)})) {
      reader["datasets"].fail(fmt::format("lacks the parameters of unit {} ({})", u, manifest.units[u].name));
    }
  }
  return file;
}

/// A file without datasets.
FileEntry parse_whole_file(const JsonValue& reader) {
  FileEntry file;
  file.name = reader["name"].text();
  file.bytes = reader["bytes"].integer(0);
  file.rest_crc = crc(reader["rest_crc32c"]);
  return file;
}

FileEntry parse_index(const JsonValue& reader) {
  FileEntry index = parse_whole_file(reader);
  if (index.name != kModelIndexName) reader["name"].fail(fmt::format("is not {}", kModelIndexName));
  return index;
}

TokenizerEntry parse_tokenizer(const JsonValue& reader) {
  TokenizerEntry tokenizer{.source = reader["source"].text(), .token_ids = read_token_ids(reader["token_ids"]), .files = {}};
  std::int64_t bytes = 0;
  reader["files"].for_each([&](const JsonValue& each) {
    FileEntry file = parse_whole_file(each);
    if (!is_tokenizer_file(file.name)) each["name"].fail("is no file of a tokenizer");
    if (std::ranges::find(tokenizer.files, file.name, &FileEntry::name) != tokenizer.files.end()) each["name"].fail("stands twice");
    if (file.bytes > kMaxTokenizerBytes - bytes) each["bytes"].fail(fmt::format("makes more than {}", kMaxTokenizerBytes));
    bytes += file.bytes;
    tokenizer.files.push_back(std::move(file));
  });
  return tokenizer;
}

void parse_mesh(const JsonValue& reader, Manifest& manifest) {
  manifest.world_size = small_integer(reader["world_size"], 1);
  manifest.shard_size = small_integer(reader["shard_size"], 1);
  manifest.replicas = small_integer(reader["replicas"], 1);
  if (std::int64_t{manifest.shard_size} * manifest.replicas != manifest.world_size) {
    reader.fail(fmt::format("is {} x {} for {} ranks", manifest.replicas, manifest.shard_size, manifest.world_size));
  }
}

/// Reads the keys that format 4 added.
void parse_history(const JsonValue& root, Manifest& manifest) {
  const JsonValue parent = root["parent"];
  if (!parent.is_null()) manifest.parent = CheckpointId{parent["run_id"].text(), parent["step"].integer(0)};
  manifest.began_from = root["began_from"].text();
  manifest.global_batch = root["global_batch"].integer(0);
  manifest.sequences = root["sequences"].integer(0);
  manifest.data = root["data"].text();
}

/// The keys of [model], under their names since format 5.
std::map<std::string, std::string> parse_model(const JsonValue& reader, std::int64_t version) {
  std::map<std::string, std::string> model = map_of(reader, std::mem_fn(&JsonValue::text));
  if (auto old = version < 5 ? model.extract("hidden") : decltype(model)::node_type(); old) {
    old.key() = "intermediate_size";
    model.insert(std::move(old));
  }
  return model;
}

/// These keys are missing in older files of format 5.
void parse_state_dtypes(const JsonValue& optimizer, Manifest& manifest) {
  if (!optimizer.has("state_dtypes")) return;
  const JsonValue dtypes = optimizer["state_dtypes"];
  dtypes.for_each([&](const JsonValue& each) {
    manifest.state_dtypes.push_back(parse_dtype(each));
    if (!can_convert(manifest.state_dtypes.back(), DType::f32)) each.fail("is no dtype of optimizer state");
  });
  if (manifest.state_dtypes.size() != manifest.state_kinds.size()) {
    dtypes.fail(fmt::format("has {} dtypes for {} kinds of state", manifest.state_dtypes.size(), manifest.state_kinds.size()));
  }
}

/// These keys are missing in older files of format 5.
void parse_retention(const JsonValue& root, Manifest& manifest) {
  if (root.has("val_loss") && !root["val_loss"].is_null()) manifest.val_loss = root["val_loss"].number();
  if (root.has("val_data")) manifest.val_data = root["val_data"].text();
  if (root.has("diverged")) manifest.diverged = root["diverged"].boolean();
  if (!root.has("retention") || root["retention"].is_null()) return;
  const JsonValue rules = root["retention"];
  manifest.retention = Retention(small_integer(rules["newest"], 0), rules["every"].integer(0), small_integer(rules["best"], 0));
}

void parse_units(const JsonValue& root, Manifest& manifest) {
  std::set<std::string> names;
  root["units"].for_each([&](const JsonValue& each) {
    manifest.units.push_back(parse_unit(each, manifest.shard_size));
    for (const fsdp::ParameterSpec& p : manifest.units.back().parameters) {
      if (!names.insert(p.name).second) each.fail(fmt::format("repeats the parameter {}", p.name));
    }
  });
}

void parse_files(const JsonValue& root, Manifest& manifest) {
  root["files"].for_each([&](const JsonValue& each) {
    manifest.files.push_back(parse_file(each, manifest));
    if (manifest.files.back().shard_rank + 1 != static_cast<int>(manifest.files.size())) {
      each["shard_rank"].fail("is out of order");
    }
  });
  if (static_cast<int>(manifest.files.size()) != manifest.shard_size) {
    root["files"].fail(fmt::format("has {} entries for {} shard ranks", manifest.files.size(), manifest.shard_size));
  }
  manifest.index = parse_index(root["index"]);
}

void check_trailer(std::string_view text, const std::string& path) {
  const std::size_t trailer_bytes = manifest_trailer("").size();
  const std::size_t covered = text.size() < trailer_bytes ? 0 : text.size() - trailer_bytes;
  require<DamagedCheckpointError>(text.size() >= trailer_bytes && text.substr(covered) == manifest_trailer(text.substr(0, covered)),
                                  "{}: the text does not match the checksum in its last line: the manifest is damaged, "
                                  "truncated or edited",
                                  path);
}

/// The text without "files", which is nearly all of a large manifest, if that is the last key before the checksum, as manifest_text() has
/// it. In a JSON text no string has line breaks, and only keys of the outermost object are one column from the left.
std::string text_without_files(std::string_view text) {
  const std::size_t files = text.find(kManifestFiles);
  const std::size_t next = files == std::string_view::npos ? files : text.find("\n \"", files + kManifestFiles.size());
  if (next == std::string_view::npos || text.size() - next > manifest_trailer("").size()) return std::string(text);
  return std::string(text.substr(0, files)) + "\n}";
}

enum class ManifestPart : std::uint8_t { all, header };

Manifest parse(std::string_view text, const std::string& path, ManifestPart part) {
  check_trailer(text, path);
  const std::string header = part == ManifestPart::header ? text_without_files(text) : std::string();
  const auto root = JsonValue::parse<DamagedCheckpointError>(part == ManifestPart::header ? std::string_view(header) : text, path);
  require<CheckpointError>(root["format"].text() == "mica checkpoint", "{}: not the manifest of a Mica checkpoint", path);
  const std::int64_t version = root["format_version"].integer(1);
  require<CheckpointError>(version >= kOldestFormatVersion && version <= kFormatVersion,
                           "{}: format version {}, but this Mica reads versions {} to {}; use {} Mica", path, version, kOldestFormatVersion,
                           kFormatVersion, version > kFormatVersion ? "a newer" : "the older");
  const std::int64_t block_bytes = root["block_bytes"].integer(1);
  if (block_bytes != kBlockBytes) root["block_bytes"].fail(fmt::format("is {}, expected {}", block_bytes, kBlockBytes));
  Manifest m;
  m.mica_version = root["mica_version"].text();
  m.run_id = root["run_id"].text();
  m.step = root["step"].integer(0);
  m.tokens = root["tokens"].integer(0);
  if (version >= 4) parse_history(root, m);
  m.seed = root["seed"].unsigned_integer();
  parse_mesh(root["mesh"], m);
  m.strategy = root["strategy"].text();
  m.kernels = root["kernels"].text();
  m.omp_threads = small_integer(root["omp_threads"], 0);
  m.optimizer = root["optimizer"]["name"].text();
  m.optimizer_steps = root["optimizer"]["num_steps"].integer(0);
  root["optimizer"]["state_kinds"].for_each([&](const JsonValue& each) { m.state_kinds.push_back(each.text()); });
  parse_state_dtypes(root["optimizer"], m);
  m.parameter_steps = map_of(root["optimizer"]["parameter_steps"], [](const JsonValue& steps) { return steps.integer(0); });
  m.scalars = map_of(root["scalars"], [](const JsonValue& value) { return value.number(); });
  parse_retention(root, m);
  m.model = parse_model(root["model"], version);
  m.config = root["config"].text();
  parse_units(root, m);
  if (version >= 5) m.tokenizer = parse_tokenizer(root["tokenizer"]);
  if (part == ManifestPart::all) parse_files(root, m);
  return m;
}

}  // namespace

Manifest parse_manifest(std::string_view text, const std::string& path) { return parse(text, path, ManifestPart::all); }

Manifest parse_manifest_header(std::string_view text, const std::string& path) { return parse(text, path, ManifestPart::header); }

}  // namespace mica::checkpoint
