// SPDX-License-Identifier: Apache-2.0
#include "hf_tensors.hpp"

#include <filesystem>
#include <set>

#include <fmt/ranges.h>

#include "mica/core/error.hpp"
#include "mica/io/path_check.hpp"
#include "mica/io/quoted_name.hpp"

namespace mica::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kMaxIndexBytes = 16 << 20;  // some 100,000 tensors
constexpr std::string_view kHead = "lm_head.weight";

}  // namespace

HfTensors::HfTensors(const std::string& folder) : folder_(folder) {
  std::error_code error;
  const std::string single = folder + "/" + kHfSingleFile;
  const std::string index = folder + "/" + kHfIndexFile;
  if (fs::exists(single, error)) {
    add_file(io::SafetensorsFile(single));
  } else if (fs::exists(index, error)) {
    read_index(index);
  } else {
    throw ConfigError(fmt::format("{}: holds neither {} nor {}; weights in other formats are to be saved as safetensors first", folder,
                                  kHfSingleFile, kHfIndexFile));
  }
}

HfTensors::HfTensors(std::string folder, const Json& index) : folder_(std::move(folder)) {
  for (const auto& [name, tensors] : index.items()) {
    io::SafetensorsHeader header;
    for (const Json& t : tensors) header.tensors.push_back({t[0], t[1], t[2], t[3], t[4], t[5]});
    add_file(io::SafetensorsFile(folder_ + "/" + name, std::move(header)));
  }
}

Json HfTensors::index() const {
  Json index = Json::object();
  for (const auto& file : files_) {
    Json& tensors = index[name_of(*file)] = Json::array();
    for (const io::SafetensorsEntry& t : file->tensors()) {
      tensors.push_back({t.name, t.dtype, t.dims, t.numel, t.offset, t.bytes});
    }
  }
  return index;
}

std::string HfTensors::name_of(const io::SafetensorsFile& file) const { return file.path().substr(folder_.size() + 1); }

void HfTensors::add_file(io::SafetensorsFile opened, const std::map<std::string, std::string>* weight_map) {
  files_.push_back(std::make_unique<io::SafetensorsFile>(std::move(opened)));
  io::SafetensorsFile& file = *files_.back();
  const std::string name = name_of(file);
  for (const io::SafetensorsEntry& entry : file.tensors()) {
    const auto [place, is_new] = tensors_.emplace(entry.name, Location{&file, &entry});
    require<CheckpointError>(is_new, "{}: holds tensor {}, which {} holds as well", file.path(), io::quoted_name(entry.name),
                             place->second.file->path());
    if (weight_map == nullptr) continue;
    const auto wanted = weight_map->find(entry.name);
    require<CheckpointError>(wanted != weight_map->end() && wanted->second == name, "{}: holds tensor {}, which {} {}", file.path(),
                             io::quoted_name(entry.name), kHfIndexFile,
                             wanted == weight_map->end() ? "does not name" : "says is in " + wanted->second);
  }
}

void HfTensors::read_index(const std::string& path) {
  const auto index = io::JsonValue::read<CheckpointError>(path, kMaxIndexBytes);
  std::map<std::string, std::string> weight_map;  // metadata.total_size is redundant, and wrong in some folders
  std::set<std::string> names;
  index["weight_map"].for_each_key([&](const std::string& tensor, const io::JsonValue& file) {
    const std::string name = file.text();
    if (!io::is_bare_name(name)) file.fail_expecting("the name of a file in the same folder");
    weight_map[tensor] = name;
    names.insert(name);
  });
  for (const std::string& name : names) {
    std::error_code error;
    require<CheckpointError>(fs::is_regular_file(folder_ + "/" + name, error), "{}: names the file {}, which is missing", path,
                             io::quoted_name(name));
    add_file(io::SafetensorsFile(folder_ + "/" + name), &weight_map);
  }
  for (const auto& [tensor, file] : weight_map) {
    require<CheckpointError>(tensors_.contains(tensor), "{}: says that tensor {} is in {}, which has none of that name", path,
                             io::quoted_name(tensor), io::quoted_name(file));
  }
}

const HfTensors::Location* HfTensors::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

HfMatch match_tensors(const HfModel& model, const HfTensors& tensors) {
  const HfArchitecture& architecture = *model.architecture;
  const std::string prefix(architecture.optional_prefix);
  const auto without_prefix = [&](const std::string& name) {
    return !prefix.empty() && name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  };
  HfMatch match;
  std::set<std::string> used;
  for (const HfTensor& wanted : model.tensors) {
    const HfTensors::Location* found = tensors.find(wanted.hf_name);
    if (found == nullptr) found = tensors.find(without_prefix(wanted.hf_name));
    require<CheckpointError>(found != nullptr, "{}: has no tensor {}, which its config.json implies", tensors.folder(),
                             io::quoted_name(wanted.hf_name));
    const io::SafetensorsEntry& entry = *found->entry;
    require<CheckpointError>(entry.dims == wanted.hf_dims(), "{}: tensor {} has the shape [{}], but config.json implies [{}]",
                             found->file->path(), io::quoted_name(entry.name), fmt::join(entry.dims, ", "),
                             fmt::join(wanted.hf_dims(), ", "));
    require<CheckpointError>(entry.mica_dtype().has_value(), "{}: tensor {} has the dtype {}; Mica reads F32, BF16 and F16",
                             found->file->path(), io::quoted_name(entry.name), entry.dtype);
    used.insert(entry.name);
    match.tensors.push_back(*found);
  }
  for (const auto& [name, found] : tensors.all()) {
    if (used.contains(name) || architecture.is_buffer(without_prefix(name))) continue;
    if (name == kHead) {  // skipped: a tied model uses the embedding
      match.tied_head = found;
      continue;
    }
    throw CheckpointError(
        fmt::format("{}: tensor {} is no part of the model that config.json describes", found.file->path(), io::quoted_name(name)));
  }
  return match;
}

}  // namespace mica::checkpoint
