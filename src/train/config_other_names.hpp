// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mica::train {

/// What other programs call what a key sets: Hugging Face's transformers (config.json and TrainingArguments), PyTorch, DeepSpeed, Megatron,
/// nanoGPT and Slurm. --help and docs/config.md show the names in PyTorch and Hugging Face. Words only serve hints for unknown keys: no
/// word is accepted as a key.
struct OtherNames {
  std::string_view key;           ///< "optim.lr"; empty where no key has this meaning
  std::string_view pytorch;       ///< FSDP1 is FullyShardedDataParallel, FSDP2 fully_shard; empty: no counterpart there
  std::string_view hugging_face;  ///< a bare name is an argument of transformers.TrainingArguments
  std::string_view words;         ///< further words, separated by blanks: lower case, underscores, no section
  std::string_view note;          ///< what a hint adds for this row's words; never empty in a row without a key
};

/// In the order of --help. A key has at most one row with names, its first; further rows have words with another note. A word occurs once
/// in the table.
[[nodiscard]] std::span<const OtherNames> other_names();
/// OtherNames::pytorch or hugging_face without the marks around words.
[[nodiscard]] std::string without_marks(std::string_view name);
/// All words of a row, including those marked in its names.
[[nodiscard]] std::vector<std::string_view> words_of(const OtherNames& names);

}  // namespace mica::train
