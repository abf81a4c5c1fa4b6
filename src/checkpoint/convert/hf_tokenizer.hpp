// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mica/checkpoint/hf_tokenizer.hpp"

namespace mica::checkpoint {

/// Of a Hugging Face folder, which may lack config.json or the files: then so does the result.
/// @throws ConfigError: an id that is none, files larger than any tokenizer's; CheckpointError, IoError
[[nodiscard]] HfTokenizer read_hf_tokenizer(const std::string& folder);

/// Can text be made into ids with these files?
[[nodiscard]] bool has_vocabulary(const HfTokenizer& tokenizer);

/// "tokenizer.json, merges.txt; eos_token_id 2, 3", for people.
[[nodiscard]] std::string describe(const HfTokenizer& tokenizer);

}  // namespace mica::checkpoint
