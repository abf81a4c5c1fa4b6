// SPDX-License-Identifier: Apache-2.0
#include "mica/data/tokenizer.hpp"

#include <filesystem>

#include "mica/core/error.hpp"
#include "mica/data/tokenizer_json.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/path_check.hpp"
#include "mica/tensor/philox.hpp"

#include "sentencepiece.hpp"

namespace mica::data {
namespace {

constexpr std::int64_t kNumBytes = 256;
constexpr std::uintmax_t kMaxVocabularyBytes = 256U << 20;

/// One id per byte: no unknown text, no loss, no training.
class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::string name() const override { return "bytes"; }
  [[nodiscard]] std::int64_t vocab_size() const override { return kNumBytes; }
  [[nodiscard]] std::string hash() const override { return fmt::format("{:016x}", hash_name("bytes 256")); }

  [[nodiscard]] std::size_t encode_part(std::string_view text, DocumentPart, std::vector<std::int32_t>& ids) const override {
    const std::size_t before = ids.size();
    ids.resize(before + text.size());
    for (std::size_t i = 0; i < text.size(); ++i) ids[before + i] = static_cast<unsigned char>(text[i]);
    return text.size();
  }

  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text(ids.size(), '\0');
    for (std::size_t i = 0; i < ids.size(); ++i) {
      require<ConfigError>(ids[i] >= 0 && ids[i] < kNumBytes, "token id {} is outside the bytes vocabulary (0 to 255)", ids[i]);
      text[i] = static_cast<char>(ids[i]);
    }
    return text;
  }
};

/// Reads a whole vocabulary file. Failures are the user's mistakes: ConfigError.
std::string read_vocabulary(const std::string& path) {
  const std::string why = io::why_no_file(path);
  require<ConfigError>(why.empty(), "--vocab={}: {}", path, why);
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  require<ConfigError>(!error && bytes <= kMaxVocabularyBytes, "--vocab={}: has {} bytes, more than any vocabulary ({})", path, bytes,
                       kMaxVocabularyBytes);
  try {
    return io::read_file(path);
  } catch (const IoError& io_error) {
    throw ConfigError(fmt::format("--vocab={}: {}", path, io_error.what()));
  }
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& vocab) {
  if (vocab == "bytes") return std::make_unique<ByteTokenizer>();
  if (vocab.ends_with(".json")) return parse_tokenizer_json(read_vocabulary(vocab), vocab);
  if (vocab.ends_with(".model")) return make_sentencepiece_tokenizer(read_vocabulary(vocab), vocab);
  std::error_code error;
  require<ConfigError>(!std::filesystem::exists(vocab + "/tokenizer.json", error),
                       "--vocab={} is a folder; name the file in it: --vocab={}/tokenizer.json", vocab, vocab);
  throw ConfigError(
      fmt::format("--vocab={} was given, expected bytes (256 ids, any text), a Hugging Face tokenizer.json, or a "
                  "SentencePiece model whose name ends in .model",
                  vocab));
}

std::string supported_vocabularies() { return "bytes, tokenizer.json, " + sentencepiece_support(); }

}  // namespace mica::data
