// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "mica/data/batch_plan.hpp"

namespace mica::data {

/// data.order: in the file's order, or shuffled differently in each epoch.
enum class DataOrder { sequential, shuffled };
/// @throws ConfigError that lists the two names.
[[nodiscard]] DataOrder data_order_from_name(std::string_view name);

/// One sequence of a run, or one sample of a dataset that has no sequences.
struct SampledSequence {
  std::int64_t global_id = 0;  ///< k: counts the sequences of the whole run from 0; the key of its random numbers
  std::int64_t epoch = 0;      ///< k div n
  std::int64_t sequence = 0;   ///< which sequence of the dataset, in [0, n)

  friend bool operator==(const SampledSequence&, const SampledSequence&) = default;
};

/// Which sequences a rank computes when. [Note: data order]
/// The run's sequences are numbered k = 0, 1, 2, ...; steps count from 1, and step t of global batch G uses
/// k = (t-1)*G + j for j = 0 .. G-1. (A run whose G was changed at a resume, on request, continues with the first sequence
/// that it has not seen: BatchPlan::sequences_at.) With n sequences in the dataset, k is in epoch k div n at position k mod n;
/// nothing is dropped, a step may span epochs, and an epoch holds every sequence exactly once. The position is the sequence
/// (sequential) or is mapped to it by the epoch's permutation (shuffled). BatchPlan assigns the G sequences to ranks. So the
/// data of a step depends on (seed, n, G, t) only: not on ranks, micro-batch or accumulation, and resuming needs only the step
/// and the number of sequences seen. Changing G changes which sequences a step has, but not their order.
/// Example: n = 10, G = 4 (B = 1, R = 2, accumulation 2), sequential. Step 3 has k = 8 9 10 11: sequences 8 9 of epoch 0 and
/// 0 1 of epoch 1. Rank 0 computes 8 in round 0 and 0 in round 1, rank 1 computes 9 and 1.
class Sampler {
 public:
  /// @param num_sequences  n, at least 1.
  Sampler(std::int64_t num_sequences, DataOrder order, std::uint64_t seed);

  [[nodiscard]] std::int64_t num_sequences() const { return num_sequences_; }
  [[nodiscard]] SampledSequence at(std::int64_t global_id) const;

  /// The micro-batch that data-parallel rank `rank` computes in `round` of `step`: [micro_batch] sequences, in order.
  /// @param step  from 1. @param round  in [0, accumulation).
  [[nodiscard]] std::vector<SampledSequence> micro_batch(const BatchPlan& plan, std::int64_t step, std::int64_t rank,
                                                         std::int64_t round) const;

 private:
  std::int64_t num_sequences_;
  DataOrder order_;
  std::uint64_t seed_;
};

}  // namespace mica::data
