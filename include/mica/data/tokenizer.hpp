#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mica::data {

/// Text to token ids and back.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// A short name for people, stored in token files, e.g. "bytes".
  [[nodiscard]] virtual std::string name() const = 0;
  /// Ids are in [0, vocab_size).
  [[nodiscard]] virtual std::int64_t vocab_size() const = 0;
  /// Differs between vocabularies that give different ids; hexadecimal.
  [[nodiscard]] virtual std::string hash() const = 0;
  /// The id put after each document; none if the vocabulary has no such id.
  [[nodiscard]] virtual std::optional<std::int32_t> end_of_document() const { return std::nullopt; }

  /// Appends the ids of `text`. Long texts come in pieces cut after line ends.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  /// @throws ConfigError for an id outside the vocabulary.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

/// @param vocab  "bytes": 256 ids, one a byte, any text in any encoding.
/// @throws ConfigError for anything else; lists what there is.
[[nodiscard]] std::unique_ptr<Tokenizer> make_tokenizer(std::string_view vocab);

}  // namespace mica::data
