#include "mica/data/tokenizer.hpp"

#include "mica/core/error.hpp"
#include "mica/tensor/philox.hpp"

namespace mica::data {
namespace {

constexpr std::int64_t kNumBytes = 256;

/// The identity: nothing is unknown, nothing is lost, nothing has to be trained.
class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::string name() const override { return "bytes"; }
  [[nodiscard]] std::int64_t vocab_size() const override { return kNumBytes; }
  [[nodiscard]] std::string hash() const override { return fmt::format("{:016x}", hash_name("bytes 256")); }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    const std::size_t before = ids.size();
    ids.resize(before + text.size());
    for (std::size_t i = 0; i < text.size(); ++i) ids[before + i] = static_cast<unsigned char>(text[i]);
  }

  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text(ids.size(), '\0');
    for (std::size_t i = 0; i < ids.size(); ++i) {
      require<ConfigError>(ids[i] >= 0 && ids[i] < kNumBytes, "token id {} is outside the bytes vocabulary (0 to 255)",
                           ids[i]);
      text[i] = static_cast<char>(ids[i]);
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view vocab) {
  if (vocab == "bytes") return std::make_unique<ByteTokenizer>();
  throw ConfigError(fmt::format(
      "--vocab={} was given, but this version of Mica knows one vocabulary: bytes (256 ids, any text)", vocab));
}

}  // namespace mica::data
