#include "mica/data/batch.hpp"

namespace mica::data {

void read_batch(const TokenDataset& dataset, std::span<const SampledSequence> sequences, Batch& batch) {
  const auto seq_len = static_cast<std::size_t>(dataset.seq_len());
  batch.num_sequences = static_cast<std::int64_t>(sequences.size());
  batch.seq_len = dataset.seq_len();
  batch.inputs.resize(sequences.size() * seq_len);
  batch.targets.resize(sequences.size() * seq_len);
  batch.global_ids.resize(sequences.size());
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    batch.global_ids[b] = sequences[b].global_id;
    dataset.read_sequence(sequences[b].sequence, std::span(batch.inputs).subspan(b * seq_len, seq_len),
                          std::span(batch.targets).subspan(b * seq_len, seq_len));
  }
}

}  // namespace mica::data
