// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "mica/comm/host_comm.hpp"
#include "mica/generate/model_pass.hpp"

namespace mica::generate {

/// A context and possible continuations, as in the loglikelihood requests of the lm-eval harness.
struct Question {
  std::vector<std::int32_t> context;                     ///< at least one token
  std::vector<std::vector<std::int32_t>> continuations;  ///< of at least one token each
};

/// Tokens of the longest question with a continuation, without the last one, which is only predicted: a capacity for ModelPass that cuts
/// no context. At least 1.
[[nodiscard]] std::int64_t longest_input(const std::vector<Question>& questions);

struct Likelihood {
  double log_likelihood = 0;  ///< sum over the continuation's tokens of log p(token | all tokens before), in nats
  bool is_greedy = true;      ///< each of its tokens is the likeliest one
};

/// Answers all questions; rank r computes numbers r, r + ranks, ... If context and continuation do not fit the pass's
/// capacity, the context is cut at its beginning. A context is read once for all continuations that follow one another and see as much of
/// it, and logits are computed of the continuations only. @param pass  with at least one slot
/// @returns one list per question, on every rank. @throws Error if a likelihood is NaN or infinite. @collective
std::vector<std::vector<Likelihood>> answer(ModelPass& pass, const std::vector<Question>& questions, const HostComm& comm);

struct TextLikelihood {
  double nats = 0;  ///< sum of -log p
  std::int64_t num_tokens = 0;
};
/// The likelihood of a long text, cut as the harness' loglikelihood_rolling does: into stretches of `context` tokens. The input of a
/// stretch begins with the token before it; for the last, shorter stretch it begins as early as fits. Stretches are dealt out to the ranks
/// in turn. @param first  the token before the text; none: the first token is not predicted. @returns the same on every rank. @throws Error
/// if it is NaN or infinite. @collective
TextLikelihood rate_text(ModelPass& pass, std::span<const std::int32_t> text, std::optional<std::int32_t> first, std::int64_t context,
                         const HostComm& comm);

}  // namespace mica::generate
