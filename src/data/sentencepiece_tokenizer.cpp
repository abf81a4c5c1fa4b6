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
constexpr std::size_t kMaxSentenceBytes = 64 << 20;  ///< the library takes some 200 bytes of memory for each
constexpr std::size_t kContextBytes = 64;

/// A document is one sentence to the library. Long ones cost memory, and a unigram model adds up scores in single precision,
/// so that rounding would decide between almost equally good segmentations of a word. So documents are cut before single
/// spaces and line ends where that changes nothing else: no piece spans the cut, and the text on either side gets the same ids when
/// encoded separately. What is encoded of the text behind a cut, which begins with the space or line end:
enum class Cut {
  none,                 ///< there are no cuts at these
  before,               ///< all of it
  before_without_mark,  ///< all of it; of the ids, the first is left out: the mark that the model puts before each sentence
  around,               ///< all but the space or line end, for which the model's mark before the sentence stands
};

bool is_separator(char c) { return c == ' ' || c == '\n'; }
bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U; }

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view model, const std::string& path)
      : name_(path.substr(path.rfind('/') + 1)), hash_(fmt::format("{:016x}", hash_name(model))) {
    const auto status = processor_.LoadFromSerializedProto({model.data(), model.size()});
    require<ConfigError>(status.ok(), "{}: is not a SentencePiece model, or is damaged: {}", path, status.error_message());
    require<ConfigError>(processor_.GetPieceSize() > 0, "{}: the model has no pieces", path);
    space_mark_ = processor_.PieceToId({kSpaceMark.data(), kSpaceMark.size()});
    at_space_ = find_kind_of_cut(' ');
    at_line_end_ = find_kind_of_cut('\n');
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
    if (!part.is_last) {
      check_length(text.size() - done);
      return done;
    }
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
  void check_length(std::size_t bytes) const {
    require<ConfigError>(
        bytes <= kMaxSentenceBytes,
        "{}: {} bytes of text without a space or line end at which this model lets it be cut; SentencePiece takes some 200 "
        "bytes of memory for each: split the text into files of less than {} bytes, or use the model's tokenizer.json",
        name_, bytes, kMaxSentenceBytes);
  }

  [[nodiscard]] std::vector<int> ids_of(std::string_view sentence) const {
    check_length(sentence.size());
    std::vector<int> ids;
    const auto status = processor_.Encode({sentence.data(), sentence.size()}, &ids);
    require(status.ok(), "{}: cannot encode a sentence of {} bytes: {}", name_, sentence.size(), status.error_message());
    return ids;
  }

  [[nodiscard]] Cut kind_of_cut(char separator) const { return separator == ' ' ? at_space_ : at_line_end_; }

  /// Of a text that begins with a separator. Empty if the ids do not begin with a mark that is to be left out.
  [[nodiscard]] std::optional<std::vector<int>> ids_behind_cut(std::string_view text, Cut kind) const {
    std::vector<int> ids = ids_of(text.substr(kind == Cut::around ? 1 : 0));
    if (kind == Cut::before_without_mark) {
      if (ids.empty() || ids[0] != space_mark_) return std::nullopt;
      ids.erase(ids.begin());
    }
    return ids;
  }

  void append(std::string_view text, bool is_first, std::vector<std::int32_t>& ids) const {
    if (text.empty()) return;
    const auto found = is_first ? ids_of(text) : ids_behind_cut(text, kind_of_cut(text[0]));
    invariant(found.has_value(), "a text behind a cut begins with a mark");
    ids.insert(ids.end(), found->begin(), found->end());
  }

  /// Whether cutting `text` before byte `at`, a separator, leaves the ids unchanged.
  [[nodiscard]] bool splits(std::string_view text, std::size_t at, Cut kind) const {
    const auto second = ids_behind_cut(text.substr(at), kind);
    if (!second) return false;
    std::vector<int> apart = ids_of(text.substr(0, at));
    apart.insert(apart.end(), second->begin(), second->end());
    return apart == ids_of(text);
  }

  [[nodiscard]] Cut find_kind_of_cut(char separator) const {
    bool marks_follow = false;   // a piece with a mark after something else: "of_the"
    bool marks_precede = false;  // a piece with something else after a mark
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      const std::string& piece = processor_.IdToPiece(id);
      if (piece.find('\n') != std::string::npos && piece.find_first_not_of('\n') != std::string::npos && separator == '\n')
        return Cut::none;
      for (std::size_t at = piece.find(kSpaceMark); at != std::string::npos; at = piece.find(kSpaceMark, at + 1)) {
        const std::size_t end = at + kSpaceMark.size();
        marks_follow |= at > 0 && !std::string_view(piece).substr(0, at).ends_with(kSpaceMark);
        marks_precede |= end < piece.size() && !std::string_view(piece).substr(end).starts_with(kSpaceMark);
      }
    }
    if (marks_follow && marks_precede) return Cut::none;  // a line end is a space to many models
    for (const Cut kind : {Cut::around, Cut::before, Cut::before_without_mark}) {
      if (splits(std::string("a") + separator + "b", 1, kind)) return kind;
    }
    return Cut::none;
  }

  /// The last position for a cut in text[1, reach); 0 if there is none.
  [[nodiscard]] std::size_t find_cut(std::string_view text, std::size_t reach) const {
    for (std::size_t i = reach - 1; i > 0; --i) {
      if (!is_separator(text[i]) || is_separator(text[i - 1]) || is_separator(text[i + 1])) continue;
      const Cut kind = kind_of_cut(text[i]);
      if (kind == Cut::none) continue;
      // The words on either side, or as much of them as decides what happens at the cut.
      std::size_t begin = i;
      while (begin > 0 && !is_separator(text[begin - 1]) && i - begin < kContextBytes) --begin;
      while (continues_character(text[begin])) ++begin;
      std::size_t end = i + 1;
      while (end < text.size() && !is_separator(text[end]) && end - i < kContextBytes) ++end;
      if (end == text.size()) continue;  // the word may go on
      while (continues_character(text[end])) --end;
      if (end <= i + 1) continue;
      if (splits(text.substr(begin, end - begin), i - begin, kind)) return i;
    }
    return 0;
  }

  std::string name_;
  std::string hash_;
  sentencepiece::SentencePieceProcessor processor_;
  int space_mark_ = 0;
  Cut at_space_ = Cut::none;
  Cut at_line_end_ = Cut::none;
};

}  // namespace

std::string sentencepiece_support() { return "SentencePiece " MICA_SENTENCEPIECE_VERSION; }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view model, const std::string& path) {
  return std::make_unique<SentencePieceTokenizer>(model, path);
}

}  // namespace mica::data
