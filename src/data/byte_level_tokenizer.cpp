// SPDX-License-Identifier: Apache-2.0
#include "byte_level_tokenizer.hpp"

#include <algorithm>

#include "mica/core/error.hpp"
#include "mica/tensor/philox.hpp"

namespace mica::data {
namespace {

/// Equal only for models that give the same ids. `model` has not been moved from.
std::string hash_of(const ByteLevelModel& model) {
  std::string all = fmt::format("byte-level {} {} ", static_cast<int>(model.pattern), model.adds_prefix_space);
  const auto add = [&](std::int64_t id, std::string_view text) { all += fmt::format("{} {} {} ", id, text.size(), text); };
  for (const auto& [id, bytes] : model.tokens) add(id, bytes);
  all += fmt::format("merges {}, whole words {}: ", model.merges.size(), !model.whole_words.empty());
  for (const Merge& merge : model.merges) all += fmt::format("{} {} ", merge.left, merge.right);
  for (const AddedToken& token : model.added) {
    add(token.id, token.text);
    all += fmt::format("{}{}{} ", token.takes_spaces_left, token.takes_spaces_right, token.is_normalized);
  }
  all += fmt::format("{} {}", model.start_of_document.value_or(-1), model.end_of_document.value_or(-1));
  return fmt::format("{:016x}", hash_name(all));
}

std::vector<AddedToken> added_tokens(const ByteLevelModel& model, bool is_normalized) {
  std::vector<AddedToken> tokens;
  std::copy_if(model.added.begin(), model.added.end(), std::back_inserter(tokens),
               [&](const AddedToken& token) { return token.is_normalized == is_normalized; });
  return tokens;
}

class ByteLevelTokenizer final : public Tokenizer {
 public:
  explicit ByteLevelTokenizer(ByteLevelModel model)
      : name_(model.name),
        hash_(hash_of(model)),
        splitter_(model.pattern, characters_),
        adds_prefix_space_(model.adds_prefix_space),
        added_(added_tokens(model, false), characters_),
        added_normalized_(added_tokens(model, true), characters_),
        pairs_(model.byte_ids, model.merges, std::move(model.whole_words)),
        tokens_(std::move(model.tokens)),
        start_of_document_(model.start_of_document),
        end_of_document_(model.end_of_document) {}

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::int64_t vocab_size() const override { return std::int64_t{tokens_.rbegin()->first} + 1; }
  [[nodiscard]] std::string hash() const override { return hash_; }
  [[nodiscard]] std::optional<std::int32_t> start_of_document() const override { return start_of_document_; }
  [[nodiscard]] std::optional<std::int32_t> end_of_document() const override { return end_of_document_; }

  [[nodiscard]] std::size_t encode_part(std::string_view text, DocumentPart part, std::vector<std::int32_t>& ids) const override {
    text = text.substr(0, part.is_last ? text.size() : sure_prefix(text));
    added_.split(text, [&](std::string_view outer, std::optional<std::int32_t> outer_id) {
      if (outer_id) {
        ids.push_back(*outer_id);
        return;
      }
      added_normalized_.split(outer, [&](std::string_view plain, std::optional<std::int32_t> id) {
        if (id) {
          ids.push_back(*id);
        } else {
          const bool continues = !part.is_first && plain.data() == text.data();
          encode_plain(plain, continues, ids);
        }
      });
    });
    return text.size();
  }

  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      const auto token = tokens_.find(id);
      require<ConfigError>(token != tokens_.end(), "token id {} is not in the vocabulary of {} ({} ids)", id, name_, vocab_size());
      text += token->second;
    }
    return text;
  }

 private:
  /// Encodes text without added tokens. `continues`: it follows words of the same text.
  void encode_plain(std::string_view text, bool continues, std::vector<std::int32_t>& ids) const {
    if (adds_prefix_space_ && !continues && text[0] != ' ') {
      encode_words(std::string(" ").append(text), ids);
    } else {
      encode_words(text, ids);
    }
  }

  void encode_words(std::string_view text, std::vector<std::int32_t>& ids) const {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = splitter_.end_of_word(text, begin);
      pairs_.encode_word(text.substr(begin, end - begin), ids);
      begin = end;
    }
  }

  /// Bytes of `text` whose ids do not depend on what follows: up to a word boundary that no added token can cover.
  [[nodiscard]] std::size_t sure_prefix(std::string_view text) const {
    const std::size_t margin = std::max<std::size_t>({4, added_.longest(), added_normalized_.longest()});
    std::size_t end = text.size() > margin ? text.size() - margin : 0;
    while (end > 0) {
      end = splitter_.sure_boundary(text, end);
      if (end > 0 && !added_.reaches(text, end) && !added_normalized_.reaches(text, end)) break;
    }
    return end;
  }

  std::string name_;
  std::string hash_;
  Characters characters_;
  WordSplitter splitter_;
  bool adds_prefix_space_;
  AddedTokens added_;
  AddedTokens added_normalized_;
  BytePairs pairs_;
  std::map<std::int32_t, std::string> tokens_;
  std::optional<std::int32_t> start_of_document_;
  std::optional<std::int32_t> end_of_document_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_level_tokenizer(ByteLevelModel model) {
  return std::make_unique<ByteLevelTokenizer>(std::move(model));
}

}  // namespace mica::data
