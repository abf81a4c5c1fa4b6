#pragma once

#include <span>
#include <string_view>

namespace mica::train {

/// What other programs call something that a config can say: Hugging Face's transformers (config.json and
/// TrainingArguments), PyTorch's FSDP, DeepSpeed, Megatron, nanoGPT and Slurm.
struct FieldWord {
  std::string_view word;  ///< lower case, underscores, no section: "learning_rate"
  std::string_view key;   ///< "optim.lr"; empty where no key has this meaning
  std::string_view note;  ///< what the name does not say; may be empty where there is a key
};

/// Each word once. Used in hints for unknown keys alone: no word is read as a key.
[[nodiscard]] std::span<const FieldWord> field_words();

}  // namespace mica::train
