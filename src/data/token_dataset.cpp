// SPDX-License-Identifier: Apache-2.0
#include "mica/data/token_dataset.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <set>

#include <glob.h>

#include "mica/core/error.hpp"
#include "mica/io/crc32c.hpp"

namespace mica::data {
namespace {

constexpr std::int64_t kSamplesInFingerprint = 256;  // of a file; manifests hold fingerprints, so it must not change

std::vector<std::string> matches_of(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  const auto stops_at = [](const char* /*folder*/, int error_number) { return error_number == EACCES ? 1 : 0; };
  const int rc = ::glob(pattern.c_str(), GLOB_NOSORT, stops_at, &found);
  if (rc == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  std::sort(paths.begin(), paths.end());  // by bytes: glob's own order depends on the locale
  require<ConfigError>(rc == 0 || rc == GLOB_NOMATCH, "cannot list the files that match '{}' (a folder on the way is unreadable)", pattern);
  require<ConfigError>(!paths.empty(), "no file matches '{}'; check data.train and data.val", pattern);
  return paths;
}

[[noreturn]] void throw_past_vocab(const TokenFile& file, std::int64_t position, std::int64_t vocab_size) {
  throw ConfigError(
      fmt::format("{}: token {} has id {}, but the model's vocab_size is {}; use the model.vocab_size of the "
                  "tokenizer that made the file, or tokenize again",
                  file.path(), position, file.token(position), vocab_size));
}

void check_vocabularies(const std::vector<TokenFile>& files, std::int64_t vocab_size) {
  for (const TokenFile& file : files) {
    require<ConfigError>(file.vocab_size().value_or(0) <= vocab_size,
                         "{}: made with a vocabulary of {} ids ('{}'), but the model's vocab_size is {}; set model.vocab_size={}",
                         file.path(), file.vocab_size().value_or(0), file.tokenizer(), vocab_size, file.vocab_size().value_or(0));
    require<ConfigError>(
        file.format() != TokenFormat::raw || vocab_size <= kMaxVocabOfU16,
        "{}: a raw *.bin file holds uint16 ids, below {}, but the model's vocab_size is {}; write the ids as uint32 into a "
        "dataset /tokens of an HDF5 file, or tokenize with mica-tokenize",
        file.path(), kMaxVocabOfU16, vocab_size);
  }
}

/// @param known  a file whose tokenizer the others must have, too; null: none yet. @returns the first file that tells its tokenizer
const TokenFile* check_tokenizers(const std::vector<TokenFile>& files, const TokenFile* known) {
  for (const TokenFile& file : files) {
    if (file.tokenizer_hash().empty()) continue;
    if (known == nullptr) known = &file;
    require<ConfigError>(known->tokenizer_hash() == file.tokenizer_hash(),
                         "{} and {} were made with different tokenizers ('{}' {} and '{}' {}); one run needs one tokenizer", known->path(),
                         file.path(), known->tokenizer(), known->tokenizer_hash(), file.tokenizer(), file.tokenizer_hash());
  }
  return known;
}

}  // namespace

std::vector<std::string> expand_paths(const std::vector<std::string>& patterns) {
  require<ConfigError>(!patterns.empty(), "no token files are named; set data.train (and data.val) to files or a glob");
  std::vector<std::string> paths;
  for (const std::string& pattern : patterns) {
    std::error_code ignored;
    const bool is_glob = pattern.find_first_of("*?[") != std::string::npos && !std::filesystem::exists(pattern, ignored);
    if (!is_glob) {
      paths.push_back(pattern);
      continue;
    }
    for (std::string& path : matches_of(pattern)) paths.push_back(std::move(path));
  }
  return paths;
}

TokenDataset TokenDataset::open(const DatasetOptions& options) {
  constexpr std::int64_t kMax = std::int64_t{1} << 31;  // token ids and positions are int32 in the model
  require<ConfigError>(options.seq_len >= 1 && options.seq_len < kMax, "train.seq_len={} was given, expected 1 to 2^31 - 1",
                       options.seq_len);
  require<ConfigError>(options.vocab_size >= 1 && options.vocab_size <= kMax, "model.vocab_size={} was given, expected 1 to 2^31",
                       options.vocab_size);
  TokenDataset dataset;
  dataset.seq_len_ = options.seq_len;
  for (const char* name : {"inputs", "targets"}) dataset.tensors_.push_back({name, Shape{options.seq_len}, DType::i32});
  dataset.vocab_size_ = options.vocab_size;
  for (const std::string& path : expand_paths(options.paths)) {
    dataset.files_.push_back(TokenFile::open(path));
    dataset.file_begins_.push_back(dataset.num_tokens_);
    dataset.num_tokens_ += dataset.files_.back().num_tokens();
  }
  dataset.file_begins_.push_back(dataset.num_tokens_);
  check_vocabularies(dataset.files_, options.vocab_size);
  check_tokenizers(dataset.files_, nullptr);
  require<ConfigError>(dataset.num_sequences() >= 1,
                       "{}{}: {} tokens in all, but one sequence of train.seq_len={} needs {} (its targets are one token further); "
                       "give more text or lower train.seq_len",
                       dataset.files_.front().path(),
                       dataset.files_.size() > 1 ? fmt::format(" and {} more", dataset.files_.size() - 1) : "", dataset.num_tokens_,
                       options.seq_len, options.seq_len + 1);
  dataset.is_scanned_ = dataset.num_tokens_ <= options.scan_at_open_tokens;
  if (dataset.is_scanned_) dataset.check_all_tokens();
  dataset.is_scattered_ = options.is_shuffled && !dataset.is_scanned_;
  for (const TokenFile& file : dataset.files_) file.set_scattered(dataset.is_scattered_);
  return dataset;
}

std::size_t TokenDataset::file_of(std::int64_t position) const {
  const auto after = std::upper_bound(file_begins_.begin(), file_begins_.end(), position);
  return static_cast<std::size_t>(after - file_begins_.begin()) - 1;
}

void TokenDataset::read_tokens(std::int64_t begin, std::span<std::int32_t> out) const {
  for (std::size_t f = file_of(begin); !out.empty(); ++f) {
    const auto part = out.first(static_cast<std::size_t>(std::min(static_cast<std::int64_t>(out.size()), file_begins_[f + 1] - begin)));
    files_[f].read(begin - file_begins_[f], part);
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (static_cast<std::uint32_t>(part[i]) < vocab_size_) continue;
      throw_past_vocab(files_[f], begin - file_begins_[f] + static_cast<std::int64_t>(i), vocab_size_);
    }
    begin += static_cast<std::int64_t>(part.size());
    out = out.subspan(part.size());
  }
}

void TokenDataset::read_sequence(std::int64_t sequence, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
  invariant(sequence >= 0 && sequence < num_sequences(), "a sequence index is below num_sequences()");
  invariant(static_cast<std::int64_t>(inputs.size()) == seq_len_ && inputs.size() == targets.size(), "inputs and targets are [T]");
  read_tokens(sequence * seq_len_, inputs);
  std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
  read_tokens(sequence * seq_len_ + seq_len_, targets.last(1));
}

void TokenDataset::read(std::int64_t sample, std::span<const std::span<std::byte>> out) const {
  invariant(out.size() == 2, "a sequence has inputs and targets");
  const auto ids = [](std::span<std::byte> bytes) {
    return std::span(reinterpret_cast<std::int32_t*>(bytes.data()), bytes.size() / sizeof(std::int32_t));
  };
  read_sequence(sample, ids(out[0]), ids(out[1]));
}

void TokenDataset::check_all_tokens() const {
  for (const TokenFile& file : files_) {
    const std::int64_t bad = file.find_past_vocab(vocab_size_, 0, file.num_tokens());
    if (bad < file.num_tokens()) throw_past_vocab(file, bad, vocab_size_);
    require<ConfigError>(!file.recorded_checksum() || *file.recorded_checksum() == file.compute_checksum(),
                         "{}: damaged: its tokens do not match the checksum that it holds; copy or make it again", file.path());
  }
}

std::string TokenDataset::fingerprint() const {
  std::uint32_t crc = 0;
  const auto add = [&](const auto& value) { crc = io::crc32c(&value, sizeof value, crc); };
  for (const TokenFile& file : files_) {
    add(file.num_tokens());
    if (const auto recorded = file.recorded_checksum()) {
      add(*recorded);
    } else {
      add(is_scanned_ ? file.compute_checksum() : sample_checksum_of(file, kSamplesInFingerprint));
    }
  }
  return described(crc);
}

std::string TokenDataset::copy_fingerprint() const {
  constexpr std::int64_t kSamples = 4096;  // in all, if each of many files has a few
  const std::int64_t num_samples = std::clamp<std::int64_t>(kSamples / std::ssize(files_), 4, kSamplesInFingerprint);
  std::uint32_t crc = 0;
  const auto add = [&](const auto& value) { crc = io::crc32c(&value, sizeof value, crc); };
  for (const TokenFile& file : files_) {
    add(file.num_tokens());
    if (const auto recorded = file.recorded_checksum()) add(*recorded);
    add(is_scanned_ ? file.compute_checksum() : sample_checksum_of(file, num_samples));
  }
  return described(crc);
}

std::string TokenDataset::described(std::uint32_t crc) const {
  return fmt::format("{} tokens in {} file{}, crc32c {:08x}", num_tokens_, files_.size(), files_.size() == 1 ? "" : "s", crc);
}

/// Of samples spread over the file, the first and the last tokens included.
std::uint32_t TokenDataset::sample_checksum_of(const TokenFile& file, std::int64_t num_samples) const {
  constexpr std::int64_t kSampleTokens = 256;
  std::array<std::int32_t, kSampleTokens> sample;
  const std::int64_t length = std::min(file.num_tokens(), kSampleTokens);
  const auto ids = std::span(sample).first(static_cast<std::size_t>(length));
  file.set_scattered(!is_scanned_);
  std::uint32_t crc = 0;
  for (std::int64_t s = 0; s < num_samples; ++s) {
    file.read((file.num_tokens() - length) * s / (num_samples - 1), ids);
    crc = io::crc32c(ids.data(), static_cast<std::int64_t>(ids.size_bytes()), crc);
  }
  file.set_scattered(is_scattered_);
  return crc;
}

void check_one_tokenizer(const TokenDataset& a, const TokenDataset& b) {
  check_tokenizers(b.files(), check_tokenizers(a.files(), nullptr));
}

std::vector<std::string> warnings_of_repeated_files(const TokenDataset& train, const TokenDataset* val) {
  const auto names = [](const std::vector<const TokenFile*>& files) {
    return fmt::format("{}{}", files[0]->path(), files.size() > 1 ? fmt::format(" and {} more", files.size() - 1) : "");
  };
  std::set<std::pair<std::uint64_t, std::uint64_t>> trained;
  std::vector<const TokenFile*> twice;
  std::vector<const TokenFile*> in_both;
  for (const TokenFile& file : train.files()) {
    if (!trained.insert(file.identity()).second) twice.push_back(&file);
  }
  if (val != nullptr) {
    for (const TokenFile& file : val->files()) {
      if (trained.contains(file.identity())) in_both.push_back(&file);
    }
  }
  std::vector<std::string> warnings;
  if (!twice.empty()) warnings.push_back(fmt::format("data.train names {} more than once: an epoch repeats those tokens", names(twice)));
  if (!in_both.empty()) {
    warnings.push_back(
        fmt::format("data.val names {}, as data.train does: the validation loss is of tokens that are trained on", names(in_both)));
  }
  return warnings;
}

}  // namespace mica::data
