// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mica/core/dtype.hpp"
#include "mica/generate/generator.hpp"

namespace mica::generate {

/// The command line of mica-generate.
struct Command {
  /// What to do; one flag each.
  enum class Task : std::uint8_t { prompt, prompt_ids, prompts, perplexity, choices };

  std::string source;
  Task task = Task::prompt;
  std::string input;         ///< the flag's value: a text, ids, or a file
  std::int64_t context = 0;  ///< tokens; 0: the model's
  std::string vocab;         ///< --vocab; empty: the model's own
  bool ignores_end = false;
  bool prints_ids = false;
  bool is_quiet = false;
  std::int64_t batch = 0;
  std::int64_t threads = 0;
  std::string dtype;  ///< as fsdp.param_dtype
  std::int64_t max_new_tokens = 0;
  SamplingOptions sampling;

  /// Whether it continues prompts.
  [[nodiscard]] bool generates() const { return task == Task::prompt || task == Task::prompt_ids || task == Task::prompts; }
  /// Whether the output is text.
  [[nodiscard]] bool writes_text() const { return !prints_ids && generates(); }
};

/// @throws ConfigError
[[nodiscard]] Command parse_command(const std::vector<std::string>& arguments);

/// "5,6,7". @throws ConfigError naming the flag.
[[nodiscard]] std::vector<std::int32_t> parse_ids(const std::string& flag, const std::string& text);

}  // namespace mica::generate
