// SPDX-License-Identifier: Apache-2.0
#include "mica/data/sampler.hpp"

#include "mica/core/error.hpp"
#include "mica/data/permutation.hpp"

namespace mica::data {

DataOrder data_order_from_name(std::string_view name) {
  if (name == "sequential") return DataOrder::sequential;
  if (name == "shuffled") return DataOrder::shuffled;
  throw ConfigError(fmt::format("data.order={} was given, expected shuffled or sequential", name));
}

Sampler::Sampler(std::int64_t num_sequences, DataOrder order, std::uint64_t seed)
    : num_sequences_(num_sequences), order_(order), seed_(seed) {
  invariant(num_sequences >= 1, "a sampler has at least one sequence");
}

SampledSequence Sampler::at(std::int64_t global_id) const {
  invariant(global_id >= 0, "a global sequence id is not negative");
  const std::int64_t epoch = global_id / num_sequences_;
  const std::int64_t position = global_id % num_sequences_;
  if (order_ == DataOrder::sequential) return {global_id, epoch, position};
  const Permutation permutation(num_sequences_, seed_, static_cast<std::uint64_t>(epoch));
  return {global_id, epoch, permutation(position)};
}

std::vector<SampledSequence> Sampler::micro_batch(const BatchPlan& plan, std::int64_t step, std::int64_t rank, std::int64_t round) const {
  invariant(step >= plan.first_step, "a step is not before the plan's first");
  invariant(rank >= 0 && rank < plan.num_ranks && round >= 0 && round < plan.accumulation, "rank and round lie in the plan");
  const std::int64_t m = round * plan.num_ranks + rank;  // so m mod R = rank and m div R = round
  const std::int64_t first = plan.sequences_at(step) + m * plan.micro_batch;
  std::vector<SampledSequence> sequences;
  sequences.reserve(static_cast<std::size_t>(plan.micro_batch));
  for (std::int64_t b = 0; b < plan.micro_batch; ++b) sequences.push_back(at(first + b));
  return sequences;
}

}  // namespace mica::data
