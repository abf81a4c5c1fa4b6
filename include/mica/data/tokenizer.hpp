// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mica::data {

/// Position of a text in its document. A whole document is both first and last.
struct DocumentPart {
  bool is_first = true;
  bool is_last = true;
};

/// Text to token ids and back. One thread at a time: a tokenizer may cache words that it has encoded.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// A short name for people, stored in token files, e.g. "bytes".
  [[nodiscard]] virtual std::string name() const = 0;
  /// Ids are in [0, vocab_size).
  [[nodiscard]] virtual std::int64_t vocab_size() const = 0;
  /// Differs between vocabularies that give different ids; hexadecimal.
  [[nodiscard]] virtual std::string hash() const = 0;
  /// The ids added before and after each document; none if the vocabulary has no such id.
  [[nodiscard]] virtual std::optional<std::int32_t> start_of_document() const { return std::nullopt; }
  [[nodiscard]] virtual std::optional<std::int32_t> end_of_document() const { return std::nullopt; }

  /// The id that stands for text that the vocabulary does not know; none if it knows all text.
  [[nodiscard]] virtual std::optional<std::int32_t> unknown_id() const { return std::nullopt; }

  /// Encodes as much of the beginning of `text` as has ids that do not depend on the rest of the document, appends these and
  /// returns its length in bytes: pass the remainder again, followed by more text. The ids of all parts together are those of the
  /// whole document. 0 means that more text is needed. The last part is encoded to its end.
  [[nodiscard]] virtual std::size_t encode_part(std::string_view text, DocumentPart part, std::vector<std::int32_t>& ids) const = 0;
  /// Appends the ids of a whole document, without start_of_document() and end_of_document().
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const { (void)encode_part(text, {}, ids); }
  /// @throws ConfigError for an id outside the vocabulary.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

/// @param vocab  "bytes": 256 ids, one a byte, any text in any encoding;
///               a path that ends in .json: see parse_tokenizer_json(); one that ends in .model: SentencePiece.
/// @throws ConfigError for anything else, and for a file that cannot be read or used.
[[nodiscard]] std::unique_ptr<Tokenizer> make_tokenizer(const std::string& vocab);

/// The vocabularies that make_tokenizer() supports in this build, for printing: "bytes, tokenizer.json, SentencePiece 0.1.97".
[[nodiscard]] std::string supported_vocabularies();

}  // namespace mica::data
