// SPDX-License-Identifier: Apache-2.0
// The only file that knows libsentencepiece.

#include <algorithm>

#include <sentencepiece_processor.h>

#include "mica/core/error.hpp"
#include "mica/tensor/philox.hpp"

#include "sentencepiece.hpp"

namespace mica::data {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  ///< how pieces write a space
constexpr std::size_t kSentenceBytes = 1 << 10;
constexpr std::size_t kMaxSentenceBytes = 1 << 30;
constexpr std::size_t kContextBytes = 64;

/// A document is one sentence to the library. Long ones cost memory, and a unigram model adds up scores in single precision,
/// so that rounding would decide between almost equally good segmentations of a word. So documents are cut before single
/// spaces where that changes nothing else: no piece spans the space, and the words on either side get the same ids when
/// encoded separately. The text after a cut begins with the space; models that put one before each sentence get the text
/// after it.
enum class Cuts { none, before_space, around_space };

bool is_space(char c) { return c == ' '; }

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view model, const std::string& path)
      : name_(path.substr(path.rfind('/') + 1)), hash_(fmt::format("{:016x}", hash_name(model))) {
    const auto status = processor_.LoadFromSerializedProto({model.data(), model.size()});
    require<ConfigError>(status.ok(), "{}: is not a SentencePiece model, or is damaged: {}", path, status.error_message());
    require<ConfigError>(processor_.GetPieceSize() > 0, "{}: the model has no pieces", path);
    cuts_ = find_cuts();
  }

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  [[nodiscard]] std::string hash() const override { return hash_; }
  [[nodiscard]] std::optional<std::int32_t> end_of_document() const override {
    return processor_.eos_id() >= 0 ? std::optional(processor_.eos_id()) : std::nullopt;
  }

  [[nodiscard]] std::optional<std::int32_t> unknown_id() const override {
    return processor_.unk_id() >= 0 ? std::optional(processor_.unk_id()) : std::nullopt;
  }

  [[nodiscard]] std::size_t encode_part(std::string_view text, DocumentPart part, std::vector<std::int32_t>& ids) const override {
    std::size_t done = 0;
    for (std::size_t reach = kSentenceBytes; reach < text.size() - done;) {
      const std::size_t cut = find_cut(text.substr(done), reach);
      if (cut == 0) {
        reach *= 2;
        continue;
      }
      append(text.substr(done, cut), part.is_first && done == 0, ids);
      done += cut;
      reach = kSentenceBytes;
    }
    if (!part.is_last) return done;
    append(text.substr(done), part.is_first && done == 0, ids);
    return text.size();
  }

  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
    for (const std::int32_t id : ids) {
      require<ConfigError>(id >= 0 && id < vocab_size(), "token id {} is not in the vocabulary of {} ({} ids)", id, name_, vocab_size());
    }
    return processor_.DecodeIds({ids.begin(), ids.end()});
  }

 private:
  [[nodiscard]] std::vector<int> ids_of(std::string_view sentence) const {
    require<ConfigError>(sentence.size() <= kMaxSentenceBytes,
                         "{}: {} bytes without the end of a sentence: is this text? A sentence may have up to {} bytes", name_,
                         sentence.size(), kMaxSentenceBytes);
    std::vector<int> ids;
    const auto status = processor_.Encode({sentence.data(), sentence.size()}, &ids);
    require(status.ok(), "{}: cannot encode a sentence of {} bytes: {}", name_, sentence.size(), status.error_message());
    return ids;
  }

  void append(std::string_view text, bool is_first, std::vector<std::int32_t>& ids) const {
    if (text.empty()) return;
    if (!is_first && cuts_ == Cuts::around_space) text.remove_prefix(1);
    const std::vector<int> found = ids_of(text);
    ids.insert(ids.end(), found.begin(), found.end());
  }

  /// Whether cutting `left` | ' ' `right` leaves the ids unchanged.
  [[nodiscard]] bool splits(std::string_view left, std::string_view right, Cuts cuts) const {
    std::string joined(left);
    (joined += ' ') += right;
    std::vector<int> apart = ids_of(left);
    const std::string_view behind = std::string_view(joined).substr(left.size() + (cuts == Cuts::around_space ? 1 : 0));
    const std::vector<int> second = ids_of(behind);
    apart.insert(apart.end(), second.begin(), second.end());
    return apart == ids_of(joined);
  }

  [[nodiscard]] Cuts find_cuts() const {
    bool marks_follow = false;   // a piece with a mark after something else: "of_the"
    bool marks_precede = false;  // a piece with something else after a mark
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      const std::string& piece = processor_.IdToPiece(id);
      for (std::size_t at = piece.find(kSpaceMark); at != std::string::npos; at = piece.find(kSpaceMark, at + 1)) {
        const std::size_t end = at + kSpaceMark.size();
        marks_follow |= at > 0 && !std::string_view(piece).substr(0, at).ends_with(kSpaceMark);
        marks_precede |= end < piece.size() && !std::string_view(piece).substr(end).starts_with(kSpaceMark);
      }
    }
    if (marks_follow && marks_precede) return Cuts::none;
    if (splits("a", "b", Cuts::around_space)) return Cuts::around_space;
    if (splits("a", "b", Cuts::before_space)) return Cuts::before_space;
    return Cuts::none;
  }

  /// The last position for a cut in text[1, reach); 0 if there is none.
  [[nodiscard]] std::size_t find_cut(std::string_view text, std::size_t reach) const {
    if (cuts_ == Cuts::none) return 0;
    for (std::size_t i = reach - 1; i > 0; --i) {
      if (!is_space(text[i]) || is_space(text[i - 1]) || is_space(text[i + 1])) continue;
      const std::size_t begin = text.rfind(' ', i - 1);
      const std::size_t end = text.find(' ', i + 1);
      const std::size_t left = begin == std::string_view::npos ? 0 : begin + 1;
      if (end == std::string_view::npos || i - left > kContextBytes || end - i > kContextBytes) continue;
      if (splits(text.substr(left, i - left), text.substr(i + 1, end - i - 1), cuts_)) return i;
    }
    return 0;
  }

  std::string name_;
  std::string hash_;
  sentencepiece::SentencePieceProcessor processor_;
  Cuts cuts_ = Cuts::none;
};

}  // namespace

std::string sentencepiece_support() { return "SentencePiece " MICA_SENTENCEPIECE_VERSION; }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view model, const std::string& path) {
  return std::make_unique<SentencePieceTokenizer>(model, path);
}

}  // namespace mica::data
