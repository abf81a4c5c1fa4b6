// SPDX-License-Identifier: Apache-2.0
#include "vocabulary.hpp"

#include <filesystem>
#include <limits>
#include <optional>

#include "mica/checkpoint/folder.hpp"
#include "mica/io/json.hpp"

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

std::vector<std::int32_t> encode_prompt(const data::Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids;
  if (const auto start = tokenizer.start_of_document()) ids.push_back(*start);
  tokenizer.encode(text, ids);
  return ids;
}

std::set<std::int32_t> end_ids(const checkpoint::HfTokenizer* files, const data::Tokenizer* tokenizer) {
  constexpr const char* kKey = "eos_token_id";
  std::set<std::int32_t> ids;
  const auto add = [&](std::int64_t id) {
    if (id >= 0) ids.insert(static_cast<std::int32_t>(id));  // some folders write -1 for none
  };
  if (files != nullptr) {
    if (const auto file = files->files.find("generation_config.json"); file != files->files.end()) {
      const auto json = io::JsonValue::parse<ConfigError>(file->second, files->source + "/generation_config.json");
      const auto read = [&](const io::JsonValue& value) { add(value.integer(-1, std::numeric_limits<std::int32_t>::max())); };
      if (const std::optional<io::JsonValue> value = json.find(kKey)) value->is_list() ? value->for_each(read) : read(*value);
    }
    if (const auto named = files->token_ids.find(kKey); ids.empty() && named != files->token_ids.end()) {
      for (const std::int64_t id : named->second) add(id);
    }
  }
  if (ids.empty() && tokenizer != nullptr && tokenizer->end_of_document()) add(*tokenizer->end_of_document());
  return ids;
}

}  // namespace mica::generate
