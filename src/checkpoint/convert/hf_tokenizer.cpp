// SPDX-License-Identifier: Apache-2.0
#include "hf_tokenizer.hpp"

#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include <fmt/ranges.h>

#include "mica/core/error.hpp"
#include "mica/data/tokenizer_json.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/json.hpp"

#include "../token_ids.hpp"
#include "../tokenizer_files.hpp"
#include "hf_config.hpp"

namespace mica::checkpoint {

namespace fs = std::filesystem;

namespace {

/// Turns an IoError into a ConfigError, since the user names the folder.
std::string read_tokenizer_file(const std::string& path) {
  try {
    return io::read_file(path);
  } catch (const IoError& error) {
    throw ConfigError(fmt::format("{}; tokenizer files are copied with the model: make it readable, or move it away", error.what()));
  }
}

/// The special tokens that the files name, by the key of their id: eos_token_id -> "</s>". Some files have objects with the text inside.
std::map<std::string, std::string> named_tokens(const HfTokenizer& tokenizer) {
  std::map<std::string, std::string> tokens;
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::optional<io::JsonValue> json = json_of(tokenizer, file);
    if (!json) continue;
    for (const char* name : {"bos_token", "eos_token", "pad_token"}) {
      const std::optional<io::JsonValue> token = json->find(name);
      if (token) tokens.try_emplace(fmt::format("{}_id", name), token->has("content") ? (*token)["content"].text() : token->text());
    }
  }
  return tokens;
}

/// Adds the ids that the files give to the named tokens.
void add_named_tokens(const HfTokenizer& tokenizer, TokenIds& token_ids) {
  const std::map<std::string, std::string> tokens = named_tokens(tokenizer);
  if (tokens.empty()) return;
  const auto add = [&](const std::string& text, std::int64_t id) {
    for (const auto& [key, token] : tokens) {
      if (token == text) token_ids.try_emplace(key, std::vector{id});
    }
  };
  constexpr std::int64_t kMostIds = std::numeric_limits<std::int32_t>::max();
  const std::optional<io::JsonValue> fast = json_of(tokenizer, "tokenizer.json"), config = json_of(tokenizer, "tokenizer_config.json");
  if (const auto added = fast ? fast->find("added_tokens") : std::nullopt) {
    added->for_each([&](const io::JsonValue& each) { add(each["content"].text(), each["id"].integer(0, kMostIds)); });
  }
  // Tokenizers that are not "fast" write no tokenizer.json.
  if (const auto added = config ? config->find("added_tokens_decoder") : std::nullopt) {
    added->for_each_key([&](const std::string& id, const io::JsonValue& each) {
      std::int32_t number = -1;
      const auto [rest, error] = std::from_chars(id.data(), id.data() + id.size(), number);
      if (error == std::errc() && rest == id.data() + id.size() && number >= 0) add(each["content"].text(), number);
    });
  }
  for (const char* file : {"added_tokens.json", "vocab.json"}) {
    const std::optional<io::JsonValue> vocabulary = json_of(tokenizer, file);
    for (const auto& [key, token] : tokens) {
      if (const auto id = vocabulary ? vocabulary->find(token) : std::nullopt) add(token, id->integer(0, kMostIds));
    }
  }
}

/// Adds the ids that mica-tokenize puts around documents.
void add_document_ends(const HfTokenizer& tokenizer, TokenIds& token_ids) {
  const auto file = tokenizer.files.find("tokenizer.json");
  if (file == tokenizer.files.end()) return;
  try {
    const std::unique_ptr<data::Tokenizer> vocabulary = data::parse_tokenizer_json(file->second, file->first);
    if (const auto id = vocabulary->start_of_document()) token_ids.try_emplace("bos_token_id", std::vector<std::int64_t>{*id});
    if (const auto id = vocabulary->end_of_document()) token_ids.try_emplace("eos_token_id", std::vector<std::int64_t>{*id});
  } catch (const ConfigError&) {  // of a kind that mica-tokenize does not take
  }
}

/// For a folder whose config.json has no ids, or that has none: one of tokenizer.save_pretrained(), or a tokenizer.json alone.
TokenIds ids_of_files(const HfTokenizer& tokenizer) {
  const std::optional<io::JsonValue> generation = json_of(tokenizer, "generation_config.json");
  TokenIds token_ids = generation ? read_token_ids(*generation) : TokenIds();
  std::erase_if(token_ids, [](const auto& each) { return each.second.empty(); });  // null
  add_named_tokens(tokenizer, token_ids);
  add_document_ends(tokenizer, token_ids);
  return token_ids;
}

}  // namespace

HfTokenizer read_hf_tokenizer(const std::string& folder) {
  std::error_code error;
  HfTokenizer tokenizer;
  tokenizer.source = fs::absolute(folder).lexically_normal().string();
  if (fs::exists(folder + "/config.json", error)) tokenizer.token_ids = read_hf_token_ids(folder);
  std::int64_t bytes = 0;
  for (const std::string_view name : kTokenizerFiles) {
    const std::string path = fmt::format("{}/{}", folder, name);
    if (!fs::is_regular_file(path, error)) continue;
    bytes += static_cast<std::int64_t>(fs::file_size(path, error));
    require<ConfigError>(bytes <= kMaxTokenizerBytes,
                         "{}: the folder's tokenizer files have more than {} bytes, more than any tokenizer; move other files away", path,
                         kMaxTokenizerBytes);
    tokenizer.files[std::string(name)] = read_tokenizer_file(path);
  }
  const bool has_ids = std::ranges::any_of(tokenizer.token_ids, [](const auto& each) { return !each.second.empty(); });  // else null
  if (!has_ids) tokenizer.token_ids = ids_of_files(tokenizer);
  return tokenizer;
}

bool has_vocabulary(const HfTokenizer& tokenizer) {
  const auto has = [&](const char* name) { return tokenizer.files.contains(name); };
  return has("tokenizer.json") || has("tokenizer.model") || has("vocab.json");
}

std::string describe(const HfTokenizer& tokenizer) {
  std::string text;
  for (const auto& [name, content] : tokenizer.files) text += (text.empty() ? "" : ", ") + name;
  for (const auto& [key, ids] : tokenizer.token_ids) {
    if (!ids.empty()) text += fmt::format("{}{} {}", text.empty() ? "" : "; ", key, fmt::join(ids, ", "));
  }
  return text;
}

}  // namespace mica::checkpoint
