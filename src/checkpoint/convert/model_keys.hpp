// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace mica::checkpoint {

/// The keys of the section [model] of a config, or of a checkpoint's manifest: "type" -> "gpt2", "layers" -> "12", ...
class ModelKeys {
 public:
  /// @param place  where they come from, for error texts.
  ModelKeys(std::map<std::string, std::string> keys, std::string place) : keys_(std::move(keys)), place_(std::move(place)) {}

  [[nodiscard]] bool has(const std::string& key) const { return keys_.contains(key); }
  /// All: @throws CheckpointError if the key is missing or its value is not of this type.
  [[nodiscard]] const std::string& text(const std::string& key) const;
  [[nodiscard]] std::int64_t integer(const std::string& key) const;
  [[nodiscard]] double real(const std::string& key) const;
  [[nodiscard]] bool flag(const std::string& key) const;

  [[nodiscard]] const std::map<std::string, std::string>& all() const { return keys_; }
  [[nodiscard]] const std::string& place() const { return place_; }

 private:
  std::map<std::string, std::string> keys_;
  std::string place_;
};

}  // namespace mica::checkpoint
