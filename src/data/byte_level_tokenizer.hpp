// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to data: byte-level BPE as a Tokenizer.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mica/data/tokenizer.hpp"

#include "added_tokens.hpp"
#include "byte_pairs.hpp"
#include "word_splitter.hpp"

namespace mica::data {

/// What a byte-level BPE tokenizer consists of. Tokens are bytes, whatever alphabet the file writes them in.
struct ByteLevelModel {
  std::string name;
  std::map<std::int32_t, std::string> tokens;  ///< by id; not empty. A map, since ids may have gaps of any length
  std::vector<Merge> merges;                   ///< by rank
  std::array<std::int32_t, 256> byte_ids{};
  BytePairs::WholeWords whole_words;  ///< empty unless the file says ignore_merges
  WordPattern pattern = WordPattern::gpt2;
  bool adds_prefix_space = false;  ///< before each text between added tokens that does not begin with a space
  std::vector<AddedToken> added;
  std::optional<std::int32_t> start_of_document;
  std::optional<std::int32_t> end_of_document;
};

[[nodiscard]] std::unique_ptr<Tokenizer> make_byte_level_tokenizer(ByteLevelModel model);

}  // namespace mica::data
