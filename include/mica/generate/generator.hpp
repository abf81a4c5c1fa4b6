// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <vector>

#include "mica/comm/host_comm.hpp"
#include "mica/generate/model_pass.hpp"
#include "mica/generate/sampling.hpp"

namespace mica::generate {

struct GeneratorOptions {
  std::int64_t max_new_tokens = 100;  ///< per prompt; a sequence also ends when the cache is full
  SamplingOptions sampling;
  std::set<std::int32_t> stop_ids;  ///< a sequence ends with any of these
};

struct NumberedPrompt {
  std::int64_t number = 0;        ///< among all ranks' prompts
  std::vector<std::int32_t> ids;  ///< at least one
};

struct GeneratedToken {
  std::int64_t prompt = 0;  ///< its number
  std::int32_t id = 0;
  bool is_last = false;
};

/// What this rank has done so far.
struct GeneratorFigures {
  std::int64_t prompt_tokens = 0, new_tokens = 0;
  std::int64_t first_tokens = 0;     ///< of new_tokens, those that passes over prompts gave
  double prompt_ms = 0, new_ms = 0;  ///< passes over prompts, each of which also gives the first new token, and passes over new tokens
};

/// Continues this rank's prompts, in slots of a cache. As soon as a slot is free, one pass reads one prompt; every other pass extends all
/// sequences in slots by one token. So a sequence depends neither on the batch, up to 16 slots, nor on the number of ranks.
class Generator {
 public:
  /// @param pass  outlives it @throws ConfigError for a prompt that does not fit the cache.
  Generator(ModelPass& pass, GeneratorOptions options, std::vector<NumberedPrompt> prompts);

  [[nodiscard]] bool has_work() const { return !waiting_.empty() || !active_.empty(); }
  /// Runs one pass; an idle one if there is no work. @collective if the model is sharded
  std::vector<GeneratedToken> step();
  [[nodiscard]] const GeneratorFigures& figures() const { return figures_; }

 private:
  struct Sequence {
    std::int64_t number = 0, slot = 0;
    std::vector<std::int32_t> ids;
    std::int64_t num_new = 0;
  };
  GeneratedToken read_prompt();
  std::vector<GeneratedToken> continue_sequences();
  GeneratedToken extend(Sequence& sequence, std::span<const float> logits) const;
  void release(const Sequence& sequence) { free_slots_.push_back(sequence.slot); }

  ModelPass& pass_;
  GeneratorOptions options_;
  std::deque<NumberedPrompt> waiting_;
  std::vector<Sequence> active_;
  std::vector<std::int64_t> free_slots_;
  GeneratorFigures figures_;
};

/// Runs every rank's generator to its end. Rank 0 passes on all ranks' tokens as they come, those of a sequence in order. @collective
void generate_all(Generator& mine, const HostComm& comm, const std::function<void(const GeneratedToken&)>& deliver);

}  // namespace mica::generate
