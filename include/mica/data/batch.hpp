#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mica/data/sampler.hpp"
#include "mica/data/token_dataset.hpp"

namespace mica::data {

/// A micro-batch in host memory.
struct Batch {
  std::int64_t num_sequences = 0;        ///< B
  std::int64_t seq_len = 0;              ///< T
  std::vector<std::int32_t> inputs;      ///< [B, T]
  std::vector<std::int32_t> targets;     ///< [B, T], the inputs shifted by one token
  std::vector<std::int64_t> global_ids;  ///< [B], SampledSequence::global_id, for nn::Context::sequences
};

/// Fills `batch` with the sequences in order; its memory is used again. @throws ConfigError for an id past the
/// vocabulary.
void read_batch(const TokenDataset& dataset, std::span<const SampledSequence> sequences, Batch& batch);

}  // namespace mica::data
