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
  /// @param json  nothing: an object without keys.
  HfConfig(std::optional<io::JsonValue> json, std::string path) : json_(std::move(json)), path_(std::move(path)) {}

  [[nodiscard]] bool has(const char* key) const { return find(key).has_value(); }
  /// A positive whole number. @param otherwise  the value when the key is absent, which is the library's own default.
  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t otherwise) const;
  [[nodiscard]] double real(const char* key, double otherwise) const;
  [[nodiscard]] bool flag(const char* key, bool otherwise) const;
  [[nodiscard]] std::string text(const char* key, const std::string& otherwise) const;
  /// An object inside; empty when the key is absent.
  [[nodiscard]] HfConfig object(const char* key) const { return {find(key), path_ + ": " + key}; }

  /// Refuses what Mica's model cannot do: the key must be absent or `supported`.
  void expect(const char* key, const Json& supported, std::string_view why) const;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  [[nodiscard]] std::optional<io::JsonValue> find(const char* key) const { return json_ ? json_->find(key) : std::nullopt; }

  std::optional<io::JsonValue> json_;
  std::string path_;
};

/// A parameter of Mica and the tensor that it is in a Hugging Face folder.
struct HfTensor {
  std::string parameter;
  Shape shape{0};  ///< Mica's
  std::string hf_name;
  bool is_transposed = false;  ///< stored [in, out] there

  [[nodiscard]] std::vector<std::int64_t> hf_dims() const;
};

/// What Mica and Hugging Face's transformers call the same model, and how each writes it down.
struct HfArchitecture {
  std::string_view type;        ///< model.type
  std::string_view model_type;  ///< config.json's
  std::string_view class_name;  ///< config.json's "architectures"
  /// The keys of [model]. @throws ConfigError for what Mica's model cannot do.
  std::map<std::string, std::string> (*read_config)(const HfConfig& config);
  /// The parts of config.json that describe the model. @throws ConfigError for what transformers cannot do.
  Json (*write_config)(const ModelKeys& keys);
  /// Every parameter, in module order. A tied head is none.
  std::vector<HfTensor> (*tensors)(const ModelKeys& keys);
  /// What a block's parameters begin with, up to its number: "model.layers."; blocks are units of imported checkpoints.
  std::string_view block_prefix;
  /// Some files leave this out in front of names; "" where all have the same names.
  std::string_view optional_prefix;
  /// Is this tensor of a file a constant that old versions saved, and not a parameter? The name without the prefix.
  bool (*is_buffer)(std::string_view name);
  std::int64_t bos_token_id, eos_token_id;  ///< the library's own, for a config.json without them
};

extern const HfArchitecture kHfGpt2;
extern const HfArchitecture kHfLlama;

/// The same keys with the numbers that a 0 stands for: kv_heads, head_dim and GPT-2's intermediate_size follow from others then.
/// (A Llama's intermediate_size stays 0: the shapes of its parameters tell.)
[[nodiscard]] ModelKeys normalized(const ModelKeys& keys);

/// architecture.tensors(keys) for sizes within any reason. @param keys  normalized. @throws CheckpointError.
[[nodiscard]] std::vector<HfTensor> model_tensors(const HfArchitecture& architecture, const ModelKeys& keys);

/// @throws ConfigError listing the known ones.
[[nodiscard]] const HfArchitecture& architecture_of_type(const ModelKeys& keys);
[[nodiscard]] const HfArchitecture& architecture_of_config(const HfConfig& config);

/// Reads and checks FOLDER/config.json.
struct HfModel {
  const HfArchitecture* architecture = nullptr;
  ModelKeys keys{{}, ""};  ///< as config.json says; not normalized
  std::vector<HfTensor> tensors;
};
[[nodiscard]] HfModel read_hf_model(const std::string& folder);
/// The same model from the keys that were read of it.
[[nodiscard]] HfModel hf_model_of(const ModelKeys& keys);

/// A config.json. @param token_ids  where they are not known: GPT-2's own with a vocabulary as large as its, else null
[[nodiscard]] Json hf_config_json(const HfArchitecture& architecture, const ModelKeys& keys, DType dtype, const TokenIds& token_ids);
/// The generation_config.json that transformers would make of it, which generate() reads; null where no token has an id.
[[nodiscard]] Json hf_generation_json(const Json& config);

/// As transformers reads FOLDER/config.json: a key that is not there has the architecture's default. @throws ConfigError
[[nodiscard]] TokenIds read_hf_token_ids(const std::string& folder);

}  // namespace mica::checkpoint
