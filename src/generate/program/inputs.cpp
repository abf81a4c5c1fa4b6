// SPDX-License-Identifier: Apache-2.0
#include "inputs.hpp"

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

#include "mica/core/error.hpp"
#include "mica/core/word_text.hpp"
#include "mica/data/token_file.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/json.hpp"
#include "mica/io/path_check.hpp"

namespace mica::generate {
namespace {

using Ids = std::vector<std::int32_t>;

std::string read_text(const std::string& flag, const std::string& path) {
  const std::string why = io::why_no_file(path);
  require<ConfigError>(why.empty(), "--{}={}: {}", flag, path, why);
  try {
    return io::read_file(path);
  } catch (const IoError& io_error) {
    throw ConfigError(fmt::format("--{}={}: {}", flag, path, io_error.what()));
  }
}

struct Line {
  std::string place;  ///< "prompts.txt:3"
  std::string text;
};

/// Lines that are not empty.
std::vector<Line> read_lines(const std::string& flag, const std::string& path) {
  std::istringstream text(read_text(flag, path));
  std::vector<Line> lines;
  std::int64_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back({fmt::format("{}:{}", path, number), line});
  }
  require<ConfigError>(!lines.empty(), "--{}={}: the file is empty", flag, path);
  return lines;
}

class Reader {
 public:
  Reader(const FoundTokenizer& found, const ModelLimits& limits)
      : tokenizer_(found.tokenizer.get()), why_none_(found.why_none), start_(found.start), limits_(limits) {}

  /// Refuses tokens of another tokenizer, where both are known.
  void check_tokenizer(const std::string& place, const data::TokenFile& file) const {
    if (tokenizer_ == nullptr || file.tokenizer_hash().empty()) return;
    require<ConfigError>(tokenizer_->hash() == file.tokenizer_hash(),
                         "{}: its tokens are those of '{}', the model's those of '{}'; tokenize the text with the model's, or name the "
                         "tokenizer that the model was trained with by --vocab",
                         place, file.tokenizer(), tokenizer_->name());
  }
  /// @param place  for error texts, in all functions here
  [[nodiscard]] const data::Tokenizer& tokenizer(const std::string& place) const {
    require<ConfigError>(tokenizer_ != nullptr, "{}: this needs a tokenizer: {}", place, why_none_);
    return *tokenizer_;
  }

  [[nodiscard]] Ids prompt(const std::string& place, Ids ids) const {
    check_ids(place, ids);
    require<ConfigError>(!ids.empty(),
                         "{}: the prompt is empty, and the vocabulary has no token that begins a text: give at least one token", place);
    require<ConfigError>(std::ssize(ids) < limits_.context, "{}: the prompt has {} tokens, which leave no room in the context of {}", place,
                         ids.size(), limits_.context);
    return ids;
  }
  /// As transformers encodes a text.
  [[nodiscard]] Ids encode(const std::string& place, const std::string& text) const {
    const data::Tokenizer& with = tokenizer(place);
    Ids ids;
    if (start_) ids.push_back(*start_);
    with.encode(text, ids);
    return ids;
  }
  [[nodiscard]] Ids prompt_of_text(const std::string& place, const std::string& text) const {
    Ids ids = encode(place, text);
    if (ids.empty()) ids = first_token();
    return prompt(place, std::move(ids));
  }

  [[nodiscard]] Question question(const std::string& place, Ids context, std::vector<Ids> continuations) const {
    check_ids(place, context);
    require<ConfigError>(!context.empty(),
                         "{}: the context is empty, and the vocabulary has no token that begins a text: give at least one token", place);
    require<ConfigError>(!continuations.empty(), "{}: no continuations, expected at least one", place);
    for (const Ids& each : continuations) {
      check_ids(place, each);
      require<ConfigError>(!each.empty(), "{}: a continuation has no tokens, expected at least one", place);
      require<ConfigError>(std::ssize(each) <= limits_.context, "{}: a continuation has {} tokens, more than the context of {}", place,
                           each.size(), limits_.context);
    }
    return {std::move(context), std::move(continuations)};
  }
  /// As lm-eval's _encode_pair(): white space at the end of the context is moved to the continuation, whose tokens are those of both texts
  /// together after as many as the context has.
  [[nodiscard]] Question question_of_text(const std::string& place, std::string context,
                                          const std::vector<std::string>& continuations) const {
    const std::size_t end = context.find_last_not_of(" \t\n\r\v\f");
    const std::string spaces = context.substr(end == std::string::npos ? 0 : end + 1);
    context.resize(context.size() - spaces.size());
    Ids given = encode(place, context);
    std::vector<Ids> rest;
    for (const std::string& each : continuations) {
      const Ids whole = encode(place, context + spaces + each);
      require<ConfigError>(each.empty() || whole.size() > given.size(),
                           "{}: the continuation {} is one token with the end of the context, so it has none of its own: begin it with a "
                           "space, or give context_ids and continuation_ids",
                           place, io::in_quotes(each));
      rest.emplace_back(whole.begin() + static_cast<std::ptrdiff_t>(std::min(whole.size(), given.size())), whole.end());
    }
    if (given.empty()) given = first_token();
    return question(place, std::move(given), std::move(rest));
  }

  void check_ids(const std::string& place, const Ids& ids) const {
    for (const std::int32_t id : ids) {
      require<ConfigError>(id >= 0 && id < limits_.vocab_size, "{}: token id {} is not in the model's vocabulary, 0 to {}", place, id,
                           limits_.vocab_size - 1);
    }
  }
  /// The token that stands before a text, if the vocabulary has one.
  [[nodiscard]] Ids first_token() const {
    if (start_) return {*start_};
    if (tokenizer_ == nullptr) return {};
    if (const auto end = tokenizer_->end_of_document()) return {*end};
    return {};
  }

 private:
  const data::Tokenizer* tokenizer_;
  std::string why_none_;
  std::optional<std::int32_t> start_;
  ModelLimits limits_;
};

Ids ids_of(const io::JsonValue& list) {
  Ids ids;
  list.for_each(
      [&](const io::JsonValue& id) { ids.push_back(static_cast<std::int32_t>(id.integer(0, std::numeric_limits<std::int32_t>::max()))); });
  return ids;
}

bool is_json_lines(const std::string& path) { return path.ends_with(".jsonl"); }

std::vector<Ids> read_prompts(const Reader& reader, const std::string& path) {
  std::vector<Ids> prompts;
  for (const Line& line : read_lines("prompts", path)) {
    if (!is_json_lines(path)) {
      prompts.push_back(reader.prompt_of_text(line.place, line.text));
      continue;
    }
    const auto json = io::JsonValue::parse<ConfigError>(line.text, line.place);
    prompts.push_back(json.has("ids") ? reader.prompt(line.place, ids_of(json["ids"]))
                                      : reader.prompt_of_text(line.place, json["prompt"].text()));
  }
  return prompts;
}

std::vector<Question> read_questions(const Reader& reader, const std::string& path) {
  std::vector<Question> questions;
  for (const Line& line : read_lines("choices", path)) {
    const auto json = io::JsonValue::parse<ConfigError>(line.text, line.place);
    if (json.has("context_ids")) {
      std::vector<Ids> continuations;
      json["continuation_ids"].for_each([&](const io::JsonValue& each) { continuations.push_back(ids_of(each)); });
      questions.push_back(reader.question(line.place, ids_of(json["context_ids"]), std::move(continuations)));
    } else {
      std::vector<std::string> continuations;
      json["continuations"].for_each([&](const io::JsonValue& each) { continuations.push_back(each.text()); });
      questions.push_back(reader.question_of_text(line.place, json["context"].text(), continuations));
    }
  }
  return questions;
}

bool is_token_file(const std::string& path) { return path.ends_with(".h5") || path.ends_with(".bin"); }

void read_rated_text(const Reader& reader, const std::string& path, Inputs& inputs) {
  const std::string place = "--perplexity=" + path;
  if (is_token_file(path)) {
    const data::TokenFile file = data::TokenFile::open(path);
    reader.check_tokenizer(place, file);
    inputs.text.resize(static_cast<std::size_t>(file.num_tokens()));
    file.read(0, inputs.text);
  } else {
    const std::string text = read_text("perplexity", path);
    reader.tokenizer(place).encode(text, inputs.text);
    inputs.text_bytes = std::ssize(text);
    if (const Ids first = reader.first_token(); !first.empty()) {
      inputs.before_text = first[0];
    } else if (!inputs.text.empty()) {  // nothing predicts the first token
      inputs.text_bytes -= std::ssize(reader.tokenizer(place).decode({inputs.text.data(), 1}));
    }
  }
  reader.check_ids(place, inputs.text);
  if (inputs.before_text) reader.check_ids(place, {*inputs.before_text});
  require<ConfigError>(inputs.text.size() + (inputs.before_text ? 1 : 0) >= 2,
                       "{}: {} tokens, expected at least two: one to predict from the other", place, inputs.text.size());
}

void put_ids(WordWriter& writer, const Ids& ids) {
  writer.put_count(ids.size());
  for (const std::int32_t id : ids) writer.put(std::to_string(id));
}

Ids take_ids(WordReader& reader) {
  Ids ids;
  reader.for_count([&] { ids.push_back(reader.number<std::int32_t>()); });
  return ids;
}

}  // namespace

bool has_text(const Command& command) {
  switch (command.task) {
    case Command::Task::prompt:
      return true;
    case Command::Task::prompt_ids:
      return false;
    case Command::Task::prompts:
      return !is_json_lines(command.input);  // objects may hold ids only: see Reader::tokenizer()
    case Command::Task::perplexity:
      return !is_token_file(command.input);
    case Command::Task::choices:
      return false;
  }
  return false;
}

Inputs read_inputs(const Command& command, const FoundTokenizer& found, const ModelLimits& limits) {
  const Reader reader(found, limits);
  Inputs inputs;
  switch (command.task) {
    case Command::Task::prompt:
      inputs.prompts = {reader.prompt_of_text("--prompt", command.input)};
      break;
    case Command::Task::prompt_ids:
      inputs.prompts = {reader.prompt("--prompt-ids", parse_ids("prompt-ids", command.input))};
      break;
    case Command::Task::prompts:
      inputs.prompts = read_prompts(reader, command.input);
      break;
    case Command::Task::perplexity:
      read_rated_text(reader, command.input, inputs);
      break;
    case Command::Task::choices:
      inputs.questions = read_questions(reader, command.input);
      break;
  }
  return inputs;
}

std::string pack(const Inputs& inputs) {
  WordWriter writer;
  writer.put_count(inputs.prompts.size());
  for (const Ids& each : inputs.prompts) put_ids(writer, each);
  writer.put_count(inputs.questions.size());
  for (const Question& each : inputs.questions) {
    put_ids(writer, each.context);
    writer.put_count(each.continuations.size());
    for (const Ids& ids : each.continuations) put_ids(writer, ids);
  }
  put_ids(writer, inputs.text);
  put_ids(writer, {inputs.stop_ids.begin(), inputs.stop_ids.end()});
  writer.put(std::to_string(inputs.before_text.value_or(-1)));
  writer.put(std::to_string(inputs.text_bytes));
  return std::move(writer).text();
}

Inputs unpack(const std::string& packed) {
  WordReader reader(packed);
  Inputs inputs;
  reader.for_count([&] { inputs.prompts.push_back(take_ids(reader)); });
  reader.for_count([&] {
    Question& question = inputs.questions.emplace_back();
    question.context = take_ids(reader);
    reader.for_count([&] { question.continuations.push_back(take_ids(reader)); });
  });
  inputs.text = take_ids(reader);
  const Ids stop_ids = take_ids(reader);
  inputs.stop_ids.insert(stop_ids.begin(), stop_ids.end());
  if (const auto before = reader.number<std::int32_t>(); before >= 0) inputs.before_text = before;
  inputs.text_bytes = reader.number<std::int64_t>();
  return inputs;
}

}  // namespace mica::generate
