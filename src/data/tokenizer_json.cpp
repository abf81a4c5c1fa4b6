// SPDX-License-Identifier: Apache-2.0
#include "mica/data/tokenizer_json.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "mica/core/error.hpp"
#include "mica/io/json.hpp"

#include "byte_level_tokenizer.hpp"

namespace mica::data {
namespace {

using io::in_quotes;
using io::JsonValue;

constexpr int kMaxDepth = 32;
constexpr std::int64_t kMaxId = std::numeric_limits<std::int32_t>::max();

bool flag(const JsonValue& json, std::string_view key, bool otherwise) {
  const auto value = json.find(key);
  return value ? value->boolean() : otherwise;
}

// --- tokens ----------------------------------------------------------------------------------------------------------

/// The alphabet in which byte-level vocabularies are written: printable bytes of Latin-1 as themselves, the others as
/// the characters from U+0100 on, in order.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    std::uint32_t next = 0x100;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      codes_[byte] = is_printable ? byte : next++;
      bytes_[codes_[byte]] = static_cast<char>(byte);
    }
  }
  /// UTF-8.
  [[nodiscard]] std::string letter_of(std::size_t byte) const {
    const std::uint32_t code = codes_[byte];
    if (code < 0x80) return {static_cast<char>(code)};
    return {static_cast<char>(0xc0U | code >> 6), static_cast<char>(0x80U | (code & 0x3fU))};
  }
  /// The bytes that a token stands for; nothing if it holds a character that is not in the alphabet.
  [[nodiscard]] std::optional<std::string> bytes_of(std::string_view token) const {
    std::string bytes;
    for (std::size_t i = 0; i < token.size();) {
      const auto lead = static_cast<unsigned char>(token[i]);
      std::uint32_t code = lead;
      if (lead >= 0x80) {  // all letters have at most two bytes
        if (lead < 0xc2 || lead >= 0xe0 || i + 1 == token.size()) return std::nullopt;
        code = (lead & 0x1fU) << 6 | (static_cast<unsigned char>(token[++i]) & 0x3fU);
      }
      const auto found = bytes_.find(code);
      if (found == bytes_.end()) return std::nullopt;
      bytes += found->second;
      ++i;
    }
    return bytes;
  }

 private:
  std::array<std::uint32_t, 256> codes_{};
  std::map<std::uint32_t, char> bytes_;
};

using Vocabulary = std::unordered_map<std::string, std::int32_t>;  ///< as the file writes tokens

Vocabulary read_vocab(const JsonValue& vocab, bool keeps_words, ByteLevelModel& model) {
  const ByteAlphabet alphabet;
  Vocabulary ids;
  vocab.for_each_key([&](const std::string& token, const JsonValue& value) {
    const auto id = static_cast<std::int32_t>(value.integer(0, kMaxId));
    const auto bytes = alphabet.bytes_of(token);
    const bool is_free = model.tokens.emplace(id, bytes.value_or(token)).second;
    if (!is_free) value.fail(fmt::format("is {}, which another token has too; each id may be used once", id));
    if (keeps_words && bytes && !bytes->empty()) model.whole_words[*bytes] = id;
    ids[token] = id;
  });
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(alphabet.letter_of(byte));
    if (found == ids.end()) {
      vocab.fail(
          fmt::format("has no token for byte 0x{:02x} ({}), so text could be lost; train it with the whole "
                      "byte-level alphabet (initial_alphabet)",
                      byte, in_quotes(alphabet.letter_of(byte))));
    }
    model.byte_ids[byte] = found->second;
  }
  return ids;
}

/// "a b" or ["a", "b"]
std::pair<std::string, std::string> read_pair(const JsonValue& merge) {
  if (merge.is_list()) {
    if (merge.size() != 2) merge.fail(fmt::format("has {} entries, expected two tokens", merge.size()));
    return {merge[0].text(), merge[1].text()};
  }
  const std::string text = merge.text();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    merge.fail(fmt::format("is {}, expected two tokens with one space between them", in_quotes(text)));
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const JsonValue& merges, const Vocabulary& ids, ByteLevelModel& model) {
  const auto id_of = [&](const JsonValue& merge, const std::string& token, const char* what) {
    const auto found = ids.find(token);
    if (found == ids.end()) merge.fail(fmt::format("{} {}, which is not in model.vocab", what, in_quotes(token)));
    return found->second;
  };
  model.merges.reserve(merges.size());
  merges.for_each([&](const JsonValue& merge) {
    // A line of merges.txt that older converters left in.
    if (!merge.is_list() && merge.text().starts_with("#version")) return;
    const auto [left, right] = read_pair(merge);
    model.merges.push_back({id_of(merge, left, "names"), id_of(merge, right, "names"), id_of(merge, left + right, "makes")});
  });
}

void read_model(const JsonValue& json, ByteLevelModel& model, Vocabulary& ids) {
  // Files older than the key "type" are BPE if they have merges.
  const std::string type = json.has("type") ? json["type"].text() : json.has("merges") ? "BPE" : "unknown";
  if (type != "BPE") json["type"].fail(fmt::format("is {}, and only BPE is supported", in_quotes(type)));
  if (const auto dropout = json.find("dropout"); dropout && dropout->number() != 0) {
    dropout->fail("is not 0: ids would be random; set it to null");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto value = json.find(key); value && !value->text().empty()) {
      value->fail(fmt::format("is {}, and only null is supported (byte-level BPE has none)", in_quotes(value->text())));
    }
  }
  ids = read_vocab(json["vocab"], flag(json, "ignore_merges", false), model);
  read_merges(json["merges"], ids, model);
}

// --- words -----------------------------------------------------------------------------------------------------------

void read_byte_level(const JsonValue& json, ByteLevelModel& model) {
  model.adds_prefix_space = flag(json, "add_prefix_space", true);
  model.pattern = flag(json, "use_regex", true) ? WordPattern::gpt2 : WordPattern::none;
}

void read_split(const JsonValue& json, ByteLevelModel& model) {
  const JsonValue pattern = json["pattern"];
  if (!pattern.has("Regex")) pattern.fail("has no key Regex, and only regular expressions are supported");
  const std::string regex = pattern["Regex"].text();
  const auto known = word_pattern_of(regex);
  if (!known) {
    pattern["Regex"].fail(fmt::format("is {}, and only these patterns are supported: GPT-2's {} and Llama 3's {}", in_quotes(regex),
                                      kGpt2Regex, kLlama3Regex));
  }
  const std::string behavior = json["behavior"].text();
  if (behavior != "Isolated") json["behavior"].fail(fmt::format("is {}, and only Isolated is supported", in_quotes(behavior)));
  if (flag(json, "invert", false)) json["invert"].fail("is true, and only false is supported");
  model.pattern = *known;
}

void read_pre_tokenizer(const JsonValue& json, ByteLevelModel& model) {
  const std::string type = json["type"].text();
  if (type == "ByteLevel") {
    read_byte_level(json, model);
    return;
  }
  if (type != "Sequence") {
    json["type"].fail(fmt::format("is {}, and only ByteLevel and a Sequence of Split and ByteLevel are supported", in_quotes(type)));
  }
  const JsonValue steps = json["pretokenizers"];
  const bool is_known = steps.size() == 2 && steps[0]["type"].text() == "Split" && steps[1]["type"].text() == "ByteLevel";
  if (!is_known) steps.fail("are not one Split and one ByteLevel, the only sequence that is supported");
  const JsonValue byte_level = steps[1];
  read_byte_level(byte_level, model);
  if (model.pattern != WordPattern::none) byte_level["use_regex"].fail("is not false: words would be split twice");
  if (model.adds_prefix_space) byte_level["add_prefix_space"].fail("is not false: each word would get a space");
  read_split(steps[0], model);
}

// --- added tokens and the document's ends ----------------------------------------------------------------------------

void read_added_tokens(const JsonValue& json, const Vocabulary& ids, ByteLevelModel& model) {
  std::map<std::string, std::size_t> place;
  auto next_id = static_cast<std::int64_t>(ids.size());  // which the tokenizers package gives to tokens not in the vocabulary
  json.for_each([&](const JsonValue& item) {
    AddedToken token;
    token.text = item["content"].text();
    if (token.text.empty()) item["content"].fail("is empty");
    token.id = static_cast<std::int32_t>(item["id"].integer(0, kMaxId));
    if (flag(item, "single_word", false)) {
      item["single_word"].fail(fmt::format("is true for {}, and only false is supported", in_quotes(token.text)));
    }
    token.takes_spaces_left = flag(item, "lstrip", false);
    token.takes_spaces_right = flag(item, "rstrip", false);
    token.is_special = flag(item, "special", false);
    token.is_normalized = flag(item, "normalized", !token.is_special);
    const auto known = ids.find(token.text);
    const auto earlier = place.find(token.text);
    const std::int64_t expected = known != ids.end() ? known->second : earlier != place.end() ? model.added[earlier->second].id : next_id++;
    if (token.id != expected) {
      item["id"].fail(fmt::format("is {} for {}, expected {}: its id in model.vocab, or the next one after the vocabulary", token.id,
                                  in_quotes(token.text), expected));
    }
    if (known == ids.end() && earlier == place.end() && model.tokens.contains(token.id)) {
      item["id"].fail(fmt::format("is {} for {}, the id of a token in model.vocab", token.id, in_quotes(token.text)));
    }
    model.tokens[token.id] = token.text;
    if (earlier != place.end()) {
      model.added[earlier->second] = token;
    } else {
      place[token.text] = model.added.size();
      model.added.push_back(token);
    }
  });
}

std::int32_t checked_id(const JsonValue& id, const ByteLevelModel& model) {
  const auto value = static_cast<std::int32_t>(id.integer(0, kMaxId));
  if (!model.tokens.contains(value)) id.fail(fmt::format("is {}, an id that no token has", value));
  return value;
}

/// The special tokens before and after the text in a TemplateProcessing's "single".
void read_template(const JsonValue& json, ByteLevelModel& model) {
  bool is_behind_text = false;
  json["single"].for_each([&](const JsonValue& piece) {
    if (piece.has("Sequence")) {
      if (is_behind_text) piece.fail("is a second sequence, expected one text");
      is_behind_text = true;
      return;
    }
    const std::string name = piece["SpecialToken"]["id"].text();
    const JsonValue name_ids = json["special_tokens"][name.c_str()]["ids"];
    auto& place = is_behind_text ? model.end_of_document : model.start_of_document;
    if (name_ids.size() != 1 || place) {
      piece.fail(fmt::format("{}: only one special token before a text and one after it are supported", in_quotes(name)));
    }
    place = checked_id(name_ids[0], model);
  });
}

void read_post_processor(const JsonValue& json, ByteLevelModel& model) {
  const std::string type = json["type"].text();
  if (type == "ByteLevel") {
    return;  // changes offsets only
  } else if (type == "TemplateProcessing") {
    if (model.start_of_document || model.end_of_document) json.fail("is a second template, expected one");
    read_template(json, model);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    model.start_of_document = checked_id(json["cls"][1], model);
    model.end_of_document = checked_id(json["sep"][1], model);
  } else if (type == "Sequence") {
    json["processors"].for_each([&](const JsonValue& step) {
      if (step["type"].text() == "Sequence") step.fail("is a sequence in a sequence, and only one is supported");
      read_post_processor(step, model);
    });
  } else {
    json["type"].fail(
        fmt::format("is {}, and only ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing and a "
                    "Sequence of them are supported",
                    in_quotes(type)));
  }
}

void find_end_of_document(ByteLevelModel& model) {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    for (const AddedToken& token : model.added) {
      if (!model.end_of_document && token.is_special && token.text == name) model.end_of_document = token.id;
    }
  }
}

}  // namespace

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, const std::string& path) {
  const auto root = JsonValue::parse<ConfigError>(text, path, kMaxDepth);
  if (!root.has("model")) root.fail("has no key model: is it a tokenizer.json, not tokenizer_config.json or vocab.json?");
  for (const char* key : {"normalizer", "truncation", "padding"}) {
    const auto value = root.find(key);
    if (!value) continue;
    const std::string type = value->has("type") ? " (" + (*value)["type"].text() + ")" : "";
    value->fail(fmt::format("is set{}, and only null is supported: ids would differ from the tokenizers package", type));
  }
  ByteLevelModel model;
  model.name = path.substr(path.rfind('/') + 1);
  const auto pre_tokenizer = root.find("pre_tokenizer");
  if (!pre_tokenizer) root.fail("has no pre_tokenizer, and only byte-level BPE is supported (pre_tokenizer ByteLevel)");
  read_pre_tokenizer(*pre_tokenizer, model);
  if (const auto decoder = root.find("decoder"); decoder && (*decoder)["type"].text() != "ByteLevel") {
    const JsonValue type = (*decoder)["type"];
    type.fail(fmt::format("is {}, and only ByteLevel is supported", in_quotes(type.text())));
  }
  Vocabulary ids;
  read_model(root["model"], model, ids);
  if (const auto added = root.find("added_tokens")) read_added_tokens(*added, ids, model);
  if (const auto processor = root.find("post_processor")) read_post_processor(*processor, model);
  if (!model.end_of_document) find_end_of_document(model);
  return make_byte_level_tokenizer(std::move(model));
}

}  // namespace mica::data
