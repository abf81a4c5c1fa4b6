// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "mica/comm/host_comm.hpp"
#include "mica/generate/model_pass.hpp"

namespace mica::generate {

/// A context and what may follow it, as the lm-eval harness asks for log-likelihoods.
struct Question {
  std::vector<std::int32_t> context;                     ///< at least one token
  std::vector<std::vector<std::int32_t>> continuations;  ///< of at least one token each
};

struct Likelihood {
  double log_likelihood = 0;  ///< sum over the continuation's tokens of log p(token | all before), in nats
  bool is_greedy = true;      ///< each of them is the likeliest one
};

/// Answers all questions, rank r those with numbers r, r + ranks, ... A context is read once for all its continuations; of one
/// that does not fit the model's context together with a continuation, the end is taken. @param pass  with one slot at least
/// @returns one list per question, on every rank. @throws Error  a likelihood is NaN or infinite. @collective
std::vector<std::vector<Likelihood>> answer(ModelPass& pass, const std::vector<Question>& questions, const HostComm& comm);

struct TextLikelihood {
  double nats = 0;  ///< sum of -log p
  std::int64_t num_tokens = 0;
};
/// Of a long text, cut as the harness' loglikelihood_rolling does: into stretches of `context` tokens, each of which is predicted
/// from the token before it on, the last one from as many tokens before it as fit. Rank r computes every num_ranks()-th.
/// @param first  what the first token follows; none: it is not predicted. @returns the same on every rank. @throws Error  it is NaN
/// or infinite. @collective
TextLikelihood rate_text(ModelPass& pass, std::span<const std::int32_t> text, std::optional<std::int32_t> first, std::int64_t context,
                         const HostComm& comm);

}  // namespace mica::generate
