// SPDX-License-Identifier: Apache-2.0
#include "hf_tokenizer.hpp"

#include <filesystem>

#include <fmt/ranges.h>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"

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
