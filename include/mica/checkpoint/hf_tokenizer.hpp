// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mica::checkpoint {

/// bos_token_id, eos_token_id and pad_token_id, as far as config.json has them: one id, several, or none for null.
using TokenIds = std::map<std::string, std::vector<std::int64_t>>;

/// What a Hugging Face folder holds of its model's vocabulary. A checkpoint of a model that came from there keeps it, so that
/// hf_export() gives it back when the folder is gone.
struct HfTokenizer {
  std::string source;  ///< the folder, absolute; empty: the model came from none
  TokenIds token_ids;
  std::map<std::string, std::string> files;  ///< name -> content, of those that is_tokenizer_file() knows: some MB
};

}  // namespace mica::checkpoint
