// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "mica/checkpoint/hf_tokenizer.hpp"
#include "mica/checkpoint/manifest.hpp"

namespace mica {
class HostComm;
}

namespace mica::checkpoint {

/// Files that transformers keeps beside config.json for a tokenizer. A checkpoint has them under the same names.
inline constexpr std::array<std::string_view, 9> kTokenizerFiles = {
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json",     "merges.txt",      "chat_template.jinja",   "generation_config.json"};
[[nodiscard]] constexpr bool is_tokenizer_file(std::string_view name) {
  return std::ranges::find(kTokenizerFiles, name) != kTokenizerFiles.end();
}
/// Limit for all files together; the largest known ones have about 40 MB.
inline constexpr std::int64_t kMaxTokenizerBytes = std::int64_t{128} << 20;

/// Writes and fsyncs the files in a checkpoint's folder. @throws IoError
[[nodiscard]] TokenizerEntry write_tokenizer(const std::string& checkpoint_folder, const HfTokenizer& tokenizer);
/// @throws DamagedCheckpointError if bytes do not match their checksums; IoError.
[[nodiscard]] HfTokenizer read_tokenizer(const std::string& checkpoint_folder, const TokenizerEntry& entry);

/// The same on rank 0; null on other ranks, and if the model did not come from a Hugging Face folder. @collective
[[nodiscard]] std::shared_ptr<const HfTokenizer> share_tokenizer(const std::string& checkpoint_folder, const Manifest& manifest,
                                                                 const HostComm& comm);

}  // namespace mica::checkpoint
