// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mica/comm/host_comm.hpp"

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

/// Rank 0's on every rank; null if rank 0 has none. @collective
[[nodiscard]] std::shared_ptr<const HfTokenizer> copy_from_first_rank(const std::shared_ptr<const HfTokenizer>& tokenizer,
                                                                      const HostComm& comm);

}  // namespace mica::checkpoint
