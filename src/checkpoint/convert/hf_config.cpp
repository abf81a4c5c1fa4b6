// SPDX-License-Identifier: Apache-2.0
#include "hf_config.hpp"

#include <algorithm>
#include <array>

#include "mica/core/error.hpp"

#include "../token_ids.hpp"

namespace mica::checkpoint {
namespace {

constexpr std::array kArchitectures = {&kHfGpt2, &kHfLlama};
constexpr std::int64_t kMaxConfigBytes = 1 << 20;

std::string known_types(std::string_view HfArchitecture::*name) {
  std::string text;
  for (const HfArchitecture* each : kArchitectures) text += fmt::format("{}{}", text.empty() ? "" : ", ", each->*name);
  return text;
}

}  // namespace

std::int64_t HfConfig::integer(const char* key, std::int64_t otherwise) const {
  const auto value = find(key);
  return value ? value->integer(1, std::int64_t{1} << 31) : otherwise;
}

double HfConfig::real(const char* key, double otherwise) const {
  const auto value = find(key);
  return value ? value->number() : otherwise;
}

bool HfConfig::flag(const char* key, bool otherwise) const {
  const auto value = find(key);
  return value ? value->boolean() : otherwise;
}

std::string HfConfig::text(const char* key, const std::string& otherwise) const {
  const auto value = find(key);
  return value ? value->text() : otherwise;
}

void HfConfig::expect(const char* key, const Json& supported, std::string_view why) const {
  const auto value = find(key);
  if (!value || Json::parse(value->dump()) == supported) return;  // compares values: 1 equals 1.0
  value->fail_expecting(fmt::format("{}: {}", supported.dump(), why));
}

std::vector<std::int64_t> HfTensor::hf_dims() const {
  std::vector<std::int64_t> dims(shape.dims().begin(), shape.dims().end());
  if (is_transposed) std::ranges::reverse(dims);
  return dims;
}

ModelKeys normalized(const ModelKeys& keys) {
  std::map<std::string, std::string> all = keys.all();
  const auto fill = [&](const char* key, const auto& value) {
    if (keys.has(key) && keys.integer(key) == 0) all[key] = std::to_string(value());
  };
  if (!keys.has("type") || keys.text("type") != "llama") fill("intermediate_size", [&] { return 4 * keys.integer("width"); });
  fill("kv_heads", [&] { return keys.integer("heads"); });
  fill("head_dim", [&] { return keys.integer("width") / std::max<std::int64_t>(1, keys.integer("heads")); });
  return {all, keys.place()};
}

std::vector<HfTensor> model_tensors(const HfArchitecture& architecture, const ModelKeys& keys) {
  struct Limit {
    const char* key;
    std::int64_t most;
  };
  constexpr Limit kLimits[] = {{"layers", 10'000},   {"heads", 10'000},  {"kv_heads", 10'000},
                               {"head_dim", 65'536}, {"width", 1 << 22}, {"intermediate_size", 1 << 24}};
  for (const Limit& limit : kLimits) {
    if (!keys.has(limit.key)) continue;
    require<CheckpointError>(keys.integer(limit.key) <= limit.most, "{}: model.{} is {}, expected at most {}", keys.place(), limit.key,
                             keys.integer(limit.key), limit.most);
  }
  return architecture.tensors(keys);
}

const HfArchitecture& architecture_of_type(const ModelKeys& keys) {
  for (const HfArchitecture* each : kArchitectures) {
    if (each->type == keys.text("type")) return *each;
  }
  throw ConfigError(fmt::format("{}: a model of type '{}' has no counterpart in Hugging Face's transformers; those with one: {}",
                                keys.place(), keys.text("type"), known_types(&HfArchitecture::type)));
}

const HfArchitecture& architecture_of_config(const HfConfig& config) {
  const std::string model_type = config.text("model_type", "");
  for (const HfArchitecture* each : kArchitectures) {
    if (each->model_type == model_type) return *each;
  }
  throw ConfigError(
      fmt::format("{}: model_type is '{}'; Mica knows {}", config.path(), model_type, known_types(&HfArchitecture::model_type)));
}

HfModel read_hf_model(const std::string& folder) {
  const std::string path = folder + "/config.json";
  const HfConfig config(io::JsonValue::read<CheckpointError, ConfigError>(path, kMaxConfigBytes), path);
  const HfArchitecture& architecture = architecture_of_config(config);
  require<ConfigError>(!config.has("quantization_config"), "{}: the model is quantized (quantization_config), which Mica does not read",
                       path);
  return hf_model_of({architecture.read_config(config), path});
}

HfModel hf_model_of(const ModelKeys& keys) {
  const HfArchitecture& architecture = architecture_of_type(keys);
  return {&architecture, keys, model_tensors(architecture, normalized(keys))};
}

TokenIds read_hf_token_ids(const std::string& folder) {
  const auto config = io::JsonValue::read<CheckpointError, ConfigError>(folder + "/config.json", kMaxConfigBytes);
  TokenIds token_ids = read_token_ids(config);
  const std::optional<io::JsonValue> vocab_size = config.find("vocab_size");
  for (const HfArchitecture* each : kArchitectures) {
    if (!config.has("model_type") || config["model_type"].text() != each->model_type) continue;
    const auto add_default = [&](const char* key, std::int64_t id) {
      if (!vocab_size || id < vocab_size->integer(1)) token_ids.try_emplace(key, std::vector{id});
    };
    add_default("bos_token_id", each->bos_token_id);
    add_default("eos_token_id", each->eos_token_id);
  }
  return token_ids;
}

TokenIds own_token_ids(const HfArchitecture& architecture, std::int64_t vocab_size) {
  if (vocab_size < architecture.own_vocab_size || vocab_size > architecture.padded_vocab_size) return {};
  return {{"bos_token_id", {architecture.bos_token_id}}, {"eos_token_id", {architecture.eos_token_id}}};
}

Json hf_config_json(const HfArchitecture& architecture, const ModelKeys& keys, DType dtype, const TokenIds& token_ids) {
  Json json = {{"architectures", {architecture.class_name}}, {"model_type", architecture.model_type}};
  json.update(architecture.write_config(keys));
  json.update(to_json(token_ids));
  json["torch_dtype"] = dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
  return json;
}

Json hf_generation_json(const Json& config) {
  Json json = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.contains(key) && !config[key].is_null()) json[key] = config[key];
  }
  return json.size() > 1 ? json : Json(nullptr);
}

}  // namespace mica::checkpoint
