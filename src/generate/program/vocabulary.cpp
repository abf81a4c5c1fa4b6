// SPDX-License-Identifier: Apache-2.0
#include "vocabulary.hpp"

#include <filesystem>
#include <limits>
#include <optional>

#include "mica/checkpoint/folder.hpp"

namespace mica::generate {

namespace fs = std::filesystem;

namespace {

bool exists(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::unique_ptr<data::Tokenizer> of_folder(const std::string& folder) {
  const std::string json = folder + "/tokenizer.json", model = folder + "/tokenizer.model";
  if (!exists(json)) return exists(model) ? data::make_tokenizer(model) : nullptr;
  try {
    return data::make_tokenizer(json);
  } catch (const ConfigError&) {  // Llama 2 has both, and its tokenizer.json is not byte-level BPE
    if (!exists(model)) throw;
    return data::make_tokenizer(model);
  }
}

std::unique_ptr<data::Tokenizer> make(const std::string& folder, const std::string& wanted, std::int64_t vocab_size) {
  if (!wanted.empty()) return data::make_tokenizer(wanted);
  if (auto found = of_folder(exists(folder + "/config.json") ? folder : checkpoint::resolve_checkpoint(folder))) return found;
  require<ConfigError>(vocab_size == 256,
                       "{} has no tokenizer, which text needs: name the one used for its training data, e.g. "
                       "--vocab=gpt2/tokenizer.json, or use --prompt-ids and --print-ids",
                       folder);
  return data::make_tokenizer("bytes");
}

}  // namespace

std::unique_ptr<data::Tokenizer> find_tokenizer(const std::string& folder, const std::string& wanted, std::int64_t vocab_size) {
  std::unique_ptr<data::Tokenizer> tokenizer = make(folder, wanted, vocab_size);
  require<ConfigError>(tokenizer->vocab_size() <= vocab_size,
                       "the vocabulary '{}' has {} ids, but the model in {} only {}: it belongs to another model", tokenizer->name(),
                       tokenizer->vocab_size(), folder, vocab_size);
  return tokenizer;
}

std::optional<std::int32_t> start_id(const checkpoint::HfTokenizer& files, const data::Tokenizer& tokenizer) {
  if (const auto start = tokenizer.start_of_document()) return start;
  const auto named = files.token_ids.find("bos_token_id");
  const bool is_named = named != files.token_ids.end() && named->second.size() == 1 && named->second[0] >= 0;
  if (!tokenizer.name().ends_with(".model") || !is_named) return std::nullopt;
  const std::optional<io::JsonValue> config = json_of(files, "tokenizer_config.json");
  const std::optional<io::JsonValue> adds = config ? config->find("add_bos_token") : std::nullopt;
  if (adds && !adds->boolean()) return std::nullopt;
  return static_cast<std::int32_t>(named->second[0]);
}

std::set<std::int32_t> end_ids(const checkpoint::HfTokenizer& files, const data::Tokenizer* tokenizer) {
  constexpr const char* kKey = "eos_token_id";
  std::set<std::int32_t> ids;
  const auto add = [&](std::int64_t id) {
    if (id >= 0) ids.insert(static_cast<std::int32_t>(id));  // some folders write -1 for none
  };
  if (const std::optional<io::JsonValue> config = json_of(files, "generation_config.json")) {
    const auto read = [&](const io::JsonValue& value) { add(value.integer(-1, std::numeric_limits<std::int32_t>::max())); };
    if (const std::optional<io::JsonValue> value = config->find(kKey)) value->is_list() ? value->for_each(read) : read(*value);
  }
  if (const auto named = files.token_ids.find(kKey); ids.empty() && named != files.token_ids.end()) {
    for (const std::int64_t id : named->second) add(id);
  }
  if (ids.empty() && tokenizer != nullptr && tokenizer->end_of_document()) add(*tokenizer->end_of_document());
  return ids;
}

}  // namespace mica::generate
