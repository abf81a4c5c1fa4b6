// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace mica::train {

/// What a config key is called in PyTorch and in Hugging Face's libraries. Empty: it has no counterpart there.
struct OtherNames {
  std::string_view key;           ///< "optim.lr"
  std::string_view pytorch;       ///< FSDP1 is FullyShardedDataParallel, FSDP2 fully_shard
  std::string_view hugging_face;  ///< a bare name is an argument of transformers.TrainingArguments
};

/// Keys with a counterpart, in the order of --help. --help and docs/config.md show them.
[[nodiscard]] std::span<const OtherNames> other_names();

}  // namespace mica::train
