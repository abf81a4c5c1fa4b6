// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mica/data/tokenizer.hpp"
#include "mica/generate/likelihood.hpp"

#include "command.hpp"

namespace mica::generate {

/// What a command works on, as token ids.
struct Inputs {
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<Question> questions;
  std::vector<std::int32_t> text;
  std::optional<std::int32_t> before_text;  ///< the token before the text that is rated
  std::int64_t text_bytes = 0;              ///< of the tokens that are predicted; 0: unknown, since the file holds tokens
  std::set<std::int32_t> stop_ids;          ///< at which a text ends
};

struct FoundTokenizer {
  std::unique_ptr<data::Tokenizer> tokenizer;  ///< null: none, so only ids can be read
  std::string why_none;                        ///< for error texts
  std::optional<std::int32_t> start;           ///< the id before a text
};

struct ModelLimits {
  std::int64_t vocab_size = 0;
  std::int64_t context = 0;
};

/// Reads the input. @throws ConfigError for what cannot be read or does not fit the model
[[nodiscard]] Inputs read_inputs(const Command& command, const FoundTokenizer& found, const ModelLimits& limits);
/// Whether read_inputs() needs a tokenizer.
[[nodiscard]] bool has_text(const Command& command);

/// As text, to send to the other ranks.
[[nodiscard]] std::string pack(const Inputs& inputs);
[[nodiscard]] Inputs unpack(const std::string& packed);

}  // namespace mica::generate
