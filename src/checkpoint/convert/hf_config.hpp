// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "mica/checkpoint/hf_tokenizer.hpp"
#include "mica/core/dtype.hpp"
#include "mica/io/json.hpp"
#include "mica/tensor/shape.hpp"

#include "model_keys.hpp"

namespace mica::checkpoint {

using Json = nlohmann::ordered_json;

/// A config.json, key by key. A key that is null counts as absent. All: @throws ConfigError naming file, key and value.
class HfConfig {
 public:
  /// @param json  nullopt: an object without keys.
  HfConfig(std::optional<io::JsonValue> json, std::string path) : json_(std::move(json)), path_(std::move(path)) {}

  [[nodiscard]] bool has(const char* key) const { return find(key).has_value(); }
  /// A positive integer. @param otherwise  the value if the key is absent: the default in transformers.
  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t otherwise) const;
  [[nodiscard]] double real(const char* key, double otherwise) const;
  [[nodiscard]] bool flag(const char* key, bool otherwise) const;
  [[nodiscard]] std::string text(const char* key, const std::string& otherwise) const;
  /// An object inside; empty when the key is absent.
  [[nodiscard]] HfConfig object(const char* key) const { return {find(key), path_ + ": " + key}; }

  /// Requires that the key is absent or has the `supported` value. @param why  for the error
  void expect(const char* key, const Json& supported, std::string_view why) const;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  [[nodiscard]] std::optional<io::JsonValue> find(const char* key) const { return json_ ? json_->find(key) : std::nullopt; }

  std::optional<io::JsonValue> json_;
  std::string path_;
};

/// A parameter of Mica, and its tensor in a Hugging Face folder.
struct HfTensor {
  std::string parameter;
  Shape shape{0};  ///< Mica's
  std::string hf_name;
  bool is_transposed = false;  ///< the folder stores it as [in, out]

  [[nodiscard]] std::vector<std::int64_t> hf_dims() const;
};

/// A model architecture of both Mica and transformers: names, config keys and tensors on both sides.
struct HfArchitecture {
  std::string_view type;        ///< model.type
  std::string_view model_type;  ///< config.json's
  std::string_view class_name;  ///< config.json's "architectures"
  /// The keys of [model]. @throws ConfigError for settings that Mica's model does not support.
  std::map<std::string, std::string> (*read_config)(const HfConfig& config);
  /// The parts of config.json that describe the model. @throws ConfigError for settings that transformers does not support.
  Json (*write_config)(const ModelKeys& keys);
  /// Every parameter, in module order. A tied head is not one of them.
  std::vector<HfTensor> (*tensors)(const ModelKeys& keys);
  /// Prefix of a block's parameters, up to its number: "model.layers.". In imported checkpoints each block is a unit.
  std::string_view block_prefix;
  /// Prefix that some files omit from names; "" if there is none.
  std::string_view optional_prefix;
  /// Whether a tensor of this name (without the prefix) is a constant that old versions saved, not a parameter.
  bool (*is_buffer)(std::string_view name);
  std::int64_t bos_token_id, eos_token_id;  ///< the defaults in transformers, for a config.json without them
  /// A vocabulary of this size, or padded to at most the second, is taken for the one that these ids belong to; 0: none is.
  std::int64_t own_vocab_size = 0, padded_vocab_size = 0;
};

extern const HfArchitecture kHfGpt2;
extern const HfArchitecture kHfLlama;

/// Replaces each 0 by the number that it stands for: kv_heads, head_dim and GPT-2's intermediate_size are derived from other keys.
/// (A Llama's intermediate_size stays 0; it follows from the shapes of the parameters.)
[[nodiscard]] ModelKeys normalized(const ModelKeys& keys);

/// architecture.tensors(keys), after a check that sizes are plausible. @param keys  normalized. @throws CheckpointError.
[[nodiscard]] std::vector<HfTensor> model_tensors(const HfArchitecture& architecture, const ModelKeys& keys);

/// @throws ConfigError listing the known architectures.
[[nodiscard]] const HfArchitecture& architecture_of_type(const ModelKeys& keys);
[[nodiscard]] const HfArchitecture& architecture_of_config(const HfConfig& config);

/// Reads and checks FOLDER/config.json.
struct HfModel {
  const HfArchitecture* architecture = nullptr;
  ModelKeys keys{{}, ""};  ///< as config.json says; not normalized
  std::vector<HfTensor> tensors;
};
[[nodiscard]] HfModel read_hf_model(const std::string& folder);
/// The same from keys that were read before.
[[nodiscard]] HfModel hf_model_of(const ModelKeys& keys);

/// The ids for a model without a tokenizer: GPT-2's, if its vocabulary has the size of GPT-2's; else empty.
[[nodiscard]] TokenIds own_token_ids(const HfArchitecture& architecture, std::int64_t vocab_size);

/// A config.json. @param token_ids  of those that are missing, bos_token_id and eos_token_id are null
[[nodiscard]] Json hf_config_json(const HfArchitecture& architecture, const ModelKeys& keys, DType dtype, const TokenIds& token_ids);
/// The generation_config.json that transformers would make from it for generate(); null if there are no token ids.
[[nodiscard]] Json hf_generation_json(const Json& config);

/// The ids in FOLDER/config.json, read as transformers does: a missing key has the architecture's default, unless that is not in the
/// vocabulary. @throws ConfigError
[[nodiscard]] TokenIds read_hf_token_ids(const std::string& folder);

}  // namespace mica::checkpoint
