// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mica/io/safetensors.hpp"

#include "hf_config.hpp"

namespace mica::checkpoint {

/// The tensors of a Hugging Face folder: one file (model.safetensors), or several with model.safetensors.index.json.
/// Headers are read and checked, data is not held. One thread.
class HfTensors {
 public:
  /// Where a tensor is.
  struct Location {
    io::SafetensorsFile* file;
    const io::SafetensorsEntry* entry;
  };

  /// @throws ConfigError (no such files), CheckpointError: index and files disagree, or a name is in two files.
  explicit HfTensors(const std::string& folder);
  /// From another rank's index(): opens a file only when its data is read.
  HfTensors(std::string folder, const Json& index);

  /// File names and their tensors.
  [[nodiscard]] Json index() const;
  /// Null if there is none of that name.
  [[nodiscard]] const Location* find(const std::string& name) const;
  [[nodiscard]] const std::map<std::string, Location>& all() const { return tensors_; }
  [[nodiscard]] std::size_t num_files() const { return files_.size(); }
  [[nodiscard]] const std::string& folder() const { return folder_; }

 private:
  void add_file(io::SafetensorsFile opened, const std::map<std::string, std::string>* weight_map = nullptr);
  [[nodiscard]] std::string name_of(const io::SafetensorsFile& file) const;
  void read_index(const std::string& path);

  std::string folder_;
  std::vector<std::unique_ptr<io::SafetensorsFile>> files_;
  std::map<std::string, Location> tensors_;
};

/// A model's parameters in the tensors of its folder.
struct HfMatch {
  std::vector<HfTensors::Location> tensors;  ///< of HfModel::tensors, in its order
  /// The head, if a file holds one although config.json says that it is tied; else null.
  HfTensors::Location tied_head{nullptr, nullptr};
};
/// Finds every parameter under its name, with or without the optional prefix.
/// @throws CheckpointError naming file and tensor: missing, of another shape, of a dtype that Mica does not read, or not
/// part of the model.
[[nodiscard]] HfMatch match_tensors(const HfModel& model, const HfTensors& tensors);

inline constexpr const char* kHfSingleFile = "model.safetensors";
inline constexpr const char* kHfIndexFile = "model.safetensors.index.json";

}  // namespace mica::checkpoint
