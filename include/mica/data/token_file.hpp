// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "mica/io/mapped_file.hpp"

namespace mica::data {

/// The token files that Mica reads. All are little-endian and are recognised by their first bytes, raw ones by their name
/// *.bin.
enum class TokenFormat {
  hdf5,      ///< Mica's own: /tokens, uint16 or uint32, with vocab_size, tokenizer and tokenizer_hash as attributes
  raw,       ///< nanoGPT's .bin: uint16 tokens without a header
  llmc_u16,  ///< llm.c's .bin: 256 int32 of header (20240520, 1, number of tokens), then uint16
  llmc_u32,  ///< the same with (20240801, 7, number of tokens) and uint32, as for Llama 3
};

inline constexpr std::int64_t kMaxVocabOfU16 = 65536;  ///< ids of larger vocabularies need uint32

/// Names inside Mica's token files.
inline constexpr const char* kTokensDataset = "/tokens";
inline constexpr const char* kVocabSizeAttribute = "vocab_size";
inline constexpr const char* kTokenizerAttribute = "tokenizer";
inline constexpr const char* kTokenizerHashAttribute = "tokenizer_hash";
inline constexpr const char* kTokensChecksumAttribute = "tokens_crc32c";  ///< CRC-32C of the tokens' bytes in the file

/// One file of tokens, mapped into memory: opening does not read the tokens, and ranks of a node share the cached pages.
/// Reading from several threads is safe.
class TokenFile {
 public:
  /// @throws ConfigError for a file that is missing, unreadable, empty, truncated or not a token file, also a raw one that looks like
  /// 32-bit ids: says what it is instead and what to do.
  static TokenFile open(const std::string& path);

  [[nodiscard]] const std::string& path() const { return mapping_.path(); }
  /// Equal for all names of one file.
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> identity() const { return mapping_.identity(); }
  [[nodiscard]] TokenFormat format() const { return layout_.format; }
  [[nodiscard]] std::int64_t num_tokens() const { return layout_.num_tokens; }
  [[nodiscard]] std::int64_t token_bytes() const { return layout_.token_bytes; }
  /// The vocabulary as recorded in the file; absent in .bin files.
  [[nodiscard]] std::optional<std::int64_t> vocab_size() const { return layout_.vocab_size; }
  [[nodiscard]] const std::string& tokenizer() const { return layout_.tokenizer; }            ///< "" if unknown
  [[nodiscard]] const std::string& tokenizer_hash() const { return layout_.tokenizer_hash; }  ///< "" if unknown
  /// The tokens' checksum as recorded in the file; absent in .bin files and in files of older versions.
  [[nodiscard]] std::optional<std::uint32_t> recorded_checksum() const { return layout_.checksum; }
  /// CRC-32C of the tokens' bytes. Reads them all. @param done  called after each block, with its bytes; may be empty. @throws IoError
  [[nodiscard]] std::uint32_t compute_checksum(const std::function<void(std::int64_t)>& done = {}) const;

  /// Tokens [begin, begin + out.size()). An id of 2^31 or more becomes negative. The range must be inside the file.
  /// @throws IoError if the file has shrunk. Looks at most once a second, since that is a request to the server on a network file system.
  void read(std::int64_t begin, std::span<std::int32_t> out) const;
  [[nodiscard]] std::int64_t token(std::int64_t position) const;
  /// Whether read() is about to read from many places: then the file system reads only what is asked for, not what follows it, too.
  void set_scattered(bool is_scattered) const;

  /// The first position in [begin, end) with an id of vocab_size or more; `end` if there is none. Reads the range once.
  [[nodiscard]] std::int64_t find_past_vocab(std::int64_t vocab_size, std::int64_t begin, std::int64_t end) const;

  /// Position and properties of the tokens in the file.
  struct Layout {
    TokenFormat format = TokenFormat::raw;
    std::int64_t offset_bytes = 0;
    std::int64_t num_tokens = 0;
    std::int64_t token_bytes = 2;
    std::optional<std::int64_t> vocab_size;
    std::string tokenizer;
    std::string tokenizer_hash;
    std::optional<std::uint32_t> checksum;
  };

 private:
  TokenFile(io::MappedFile mapping, Layout layout);
  io::MappedFile mapping_;
  Layout layout_;
  struct Shared {  // by threads
    std::atomic<std::int64_t> next_check_ns = 0;
    std::atomic<bool> is_scattered = false;
  };
  std::unique_ptr<Shared> shared_ = std::make_unique<Shared>();
};

}  // namespace mica::data
