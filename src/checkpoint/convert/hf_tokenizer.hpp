// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mica/checkpoint/hf_tokenizer.hpp"

namespace mica::checkpoint {

/// Reads token ids and tokenizer files of a Hugging Face folder; missing ones are left out. If config.json has no id, they
/// come from the tokenizer's own files.
/// @throws ConfigError: an invalid id, files larger than any tokenizer's; CheckpointError, IoError
[[nodiscard]] HfTokenizer read_hf_tokenizer(const std::string& folder);

/// Whether these files can turn text into ids.
[[nodiscard]] bool has_vocabulary(const HfTokenizer& tokenizer);

/// "tokenizer.json, merges.txt; eos_token_id 2, 3", for output.
[[nodiscard]] std::string describe(const HfTokenizer& tokenizer);

}  // namespace mica::checkpoint
