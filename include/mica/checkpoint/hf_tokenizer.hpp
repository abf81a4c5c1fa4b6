// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mica/comm/host_comm.hpp"
#include "mica/io/json.hpp"

namespace mica::checkpoint {

/// Those of bos_token_id, eos_token_id and pad_token_id that config.json has: one id or several; an empty list for null.
using TokenIds = std::map<std::string, std::vector<std::int64_t>>;

/// The tokenizer files and special token ids of a Hugging Face folder. Checkpoints of a model from there keep them, so that
/// hf_export() can write them even if the folder is gone.
struct HfTokenizer {
  std::string source;  ///< the folder, absolute; empty: the model came from none
  TokenIds token_ids;
  std::map<std::string, std::string> files;  ///< name -> content, for names that is_tokenizer_file() accepts: some MB
};

/// One of its files, parsed; nothing if it has no such file. @throws ConfigError: not JSON
[[nodiscard]] std::optional<io::JsonValue> json_of(const HfTokenizer& tokenizer, const std::string& name);

/// Copies rank 0's to every rank; null if rank 0 has none. @collective
[[nodiscard]] std::shared_ptr<const HfTokenizer> copy_from_first_rank(const std::shared_ptr<const HfTokenizer>& tokenizer,
                                                                      const HostComm& comm);

}  // namespace mica::checkpoint
