// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mica/data/dataset.hpp"
#include "mica/data/token_file.hpp"

namespace mica::data {

/// Replaces every glob by the files it matches, sorted by name, and keeps the rest as they are, in order.
/// @throws ConfigError for an empty list and for a glob that matches nothing.
[[nodiscard]] std::vector<std::string> expand_paths(const std::vector<std::string>& patterns);

struct DatasetOptions {
  std::vector<std::string> paths;  ///< files and globs
  std::int64_t seq_len = 0;        ///< T
  std::int64_t vocab_size = 0;     ///< the model's
  /// Datasets of at most this many tokens are checked against vocab_size when they are opened, so that a wrong file is found
  /// before a long start-up. Every sequence is also checked when it is read.
  std::int64_t scan_at_open_tokens = 32'000'000;
  bool is_shuffled = false;  ///< sequences will be read in random order; matters to datasets that are not scanned
};

/// Files put end to end as one sequence of N tokens, cut into n = (N-1) div T sequences of T tokens.
/// Inputs of sequence i are tokens [i*T, i*T + T), its targets [i*T + 1, i*T + T + 1).
/// Example: N = 10, T = 3: n = 3; sequence 2 has inputs 6 7 8 and targets 7 8 9. With N = 9, n = 2.
/// As a Dataset: samples are sequences, with the tensors inputs and targets, i32 [T] each.
class TokenDataset final : public Dataset {
 public:
  /// @throws ConfigError: a bad file (see TokenFile), fewer than T + 1 tokens, files of different tokenizers, a
  /// vocabulary larger than the model's, or an id past it.
  static TokenDataset open(const DatasetOptions& options);

  [[nodiscard]] std::int64_t num_tokens() const { return num_tokens_; }                      ///< N
  [[nodiscard]] std::int64_t num_sequences() const { return (num_tokens_ - 1) / seq_len_; }  ///< n
  [[nodiscard]] std::int64_t seq_len() const { return seq_len_; }                            ///< T
  [[nodiscard]] const std::vector<TokenFile>& files() const { return files_; }

  [[nodiscard]] std::int64_t num_samples() const override { return num_sequences(); }
  [[nodiscard]] const std::vector<SampleTensor>& tensors() const override { return tensors_; }
  /// read_sequence()
  void read(std::int64_t sample, std::span<const std::span<std::byte>> out) const override;

  /// @param inputs, targets  [T] each. @throws ConfigError for an id that is not below vocab_size (file, position, id).
  void read_sequence(std::int64_t sequence, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

  /// Reads every token once. @throws ConfigError as read_sequence, and if a file does not match its checksum.
  void check_all_tokens() const;

  /// Number of tokens and files, and a checksum of sizes and tokens. Of a file's tokens it takes the checksum that the file
  /// holds; without one all tokens of a dataset that is scanned at open, or a sample of a larger one.
  [[nodiscard]] std::string fingerprint() const override;

  /// The same of the copy of the files that this rank sees, to compare ranks: a few samples of each large file, whatever checksum it holds.
  [[nodiscard]] std::string copy_fingerprint() const;

 private:
  TokenDataset() = default;
  /// Tokens [begin, begin + out.size()) of the dataset; may span files.
  void read_tokens(std::int64_t begin, std::span<std::int32_t> out) const;
  [[nodiscard]] std::string described(std::uint32_t crc) const;
  [[nodiscard]] std::size_t file_of(std::int64_t position) const;
  [[nodiscard]] std::uint32_t sample_checksum_of(const TokenFile& file, std::int64_t num_samples) const;

  std::vector<SampleTensor> tensors_;
  std::vector<TokenFile> files_;
  std::vector<std::int64_t> file_begins_;  ///< of each file's first token; one more entry: N
  std::int64_t num_tokens_ = 0;
  std::int64_t seq_len_ = 0;
  std::int64_t vocab_size_ = 0;
  bool is_scanned_ = false;    ///< small enough to be read whole at open
  bool is_scattered_ = false;  ///< sequences are read from files that are not in memory, in random order
};

/// @throws ConfigError if files of the two were made with different tokenizers. A file that does not tell its tokenizer fits any.
void check_one_tokenizer(const TokenDataset& a, const TokenDataset& b);

/// A warning if data.train names a file twice, and one if data.val (null: none) names one that data.train names, too, under this name or
/// another. Both may be meant.
[[nodiscard]] std::vector<std::string> warnings_of_repeated_files(const TokenDataset& train, const TokenDataset* val);

}  // namespace mica::data
