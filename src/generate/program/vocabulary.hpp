// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "mica/checkpoint/hf_tokenizer.hpp"
#include "mica/data/tokenizer.hpp"

namespace mica::generate {

/// The model's tokenizer: `wanted` (--vocab) if that is not empty, else the one in the folder or the checkpoint, else bytes if there are
/// 256 ids. @throws ConfigError if there is none, or if it has more ids than the model.
[[nodiscard]] std::unique_ptr<data::Tokenizer> find_tokenizer(const std::string& folder, const std::string& wanted,
                                                              std::int64_t vocab_size);

/// The id that transformers puts before a text; none if it puts none. A SentencePiece model does not say it: its bos_token_id goes
/// there, unless tokenizer_config.json has add_bos_token = false.
/// @param files  without any, if the model did not come from a Hugging Face folder
[[nodiscard]] std::optional<std::int32_t> start_id(const checkpoint::HfTokenizer& files, const data::Tokenizer& tokenizer);

/// The ids that end a text: those that generation_config.json names, else config.json, else the tokenizer's end of documents.
/// @param files  as for start_id()  @param tokenizer  null: none is known
[[nodiscard]] std::set<std::int32_t> end_ids(const checkpoint::HfTokenizer& files, const data::Tokenizer* tokenizer);

}  // namespace mica::generate
