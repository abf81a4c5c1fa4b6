// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mica/data/tokenizer.hpp"
#include "mica/generate/generator.hpp"
#include "mica/generate/likelihood.hpp"
#include "mica/generate/text_stream.hpp"

#include "inputs.hpp"

namespace mica::generate {

/// Writes tokens to standard output on rank 0: for one prompt as they come, for a file of prompts one line per prompt, in order.
class TokenPrinter {
 public:
  /// @param tokenizer  null: ids are printed. All arguments outlive it.
  TokenPrinter(const Command& command, const Inputs& inputs, const data::Tokenizer* tokenizer);

  void take(const GeneratedToken& token);

 private:
  struct Answer {
    std::vector<std::int32_t> ids;
    bool is_whole = false;
  };
  void print_now(const GeneratedToken& token);
  void print_line(std::size_t prompt);

  const Inputs& inputs_;
  const data::Tokenizer* tokenizer_;
  bool prints_ids_, streams_;
  std::optional<TextStream> stream_;
  std::vector<Answer> answers_;
  std::size_t next_ = 0;  ///< the first prompt whose line is not written yet
};

/// One JSON line each.
void print_text_likelihood(const TextLikelihood& likelihood, std::int64_t text_bytes);
void print_answers(const std::vector<Question>& questions, const std::vector<std::vector<Likelihood>>& answers);

}  // namespace mica::generate
