// SPDX-License-Identifier: Apache-2.0
#include "mica/io/json.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/path_check.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::io {
namespace {

using Json = nlohmann::json;

const Json& tree(const void* json) { return *static_cast<const Json*>(json); }

std::string dump_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string shortened(std::string text) {
  std::size_t most = 300;
  if (text.size() <= most) return text;
  while ((static_cast<unsigned char>(text[most]) & 0xc0U) == 0x80U) --most;  // do not cut inside a character
  return text.substr(0, most) + "...";
}

}  // namespace

struct JsonValue::Document {
  std::string path;
  MakeError make_error = nullptr;
  Json json{};
};

JsonValue JsonValue::parse(std::string_view text, const std::string& path, int max_depth, Errors errors) {
  using Event = Json::parse_event_t;
  const auto refuse = [&](const std::string& what) { std::rethrow_exception(errors.syntax(fmt::format("{}: {}", path, what))); };
  // The parser would treat a NUL as the end of the text.
  if (text.find('\0') != std::string_view::npos) refuse("is no valid JSON: it holds a NUL byte");
  std::vector<std::set<std::string>> keys;  // keys of the objects that are open: the tree would silently keep one of two equal keys
  const auto watch = [&](int depth, Event event, const Json& value) {
    const bool is_deeper = event == Event::object_start || event == Event::array_start;
    if (is_deeper && depth >= max_depth) refuse(fmt::format("is nested deeper than {} levels", max_depth));
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) {
      refuse(fmt::format("has the key {} twice", shortened(dump_line(value))));
    }
    return true;
  };
  Document document{.path = path, .make_error = errors.value};
  try {
    document.json = Json::parse(text, watch);
  } catch (const Json::exception& e) {
    std::string what = e.what();
    std::ranges::replace(what, '\n', ' ');
    refuse("is no valid JSON: " + shortened(what));  // it quotes the text that was read last, however long that is
  }
  if (!document.json.is_object()) refuse("is no JSON object");
  const auto shared = std::make_shared<const Document>(std::move(document));
  return {shared, &shared->json, ""};
}

JsonValue JsonValue::read(const std::string& path, std::int64_t max_bytes, Errors errors) {
  const std::string why = why_no_file(path);
  require<ConfigError>(why.empty(), "{}: {}", path, why);
  const std::int64_t bytes = RawFile::open_for_reading(path).file_bytes();
  if (bytes <= max_bytes) return parse(read_file(path), path, kMaxDepth, errors);
  std::rethrow_exception(errors.syntax(fmt::format("{}: has {} bytes, expected at most {}", path, bytes, max_bytes)));
}

JsonValue JsonValue::operator[](std::string_view name) const {
  if (!tree(json_).is_object()) fail_expecting("an object");
  std::string key = fmt::format("{}{}{}", key_, key_.empty() ? "" : ".", name);
  const auto found = tree(json_).find(name);
  if (found == tree(json_).end()) {
    std::rethrow_exception(document_->make_error(fmt::format("{}: the key {} is missing", document_->path, key)));
  }
  return {document_, &*found, std::move(key)};
}

JsonValue JsonValue::operator[](std::size_t index) const {
  if (index >= size()) fail(fmt::format("has {} entries, expected at least {}", size(), index + 1));
  return {document_, &tree(json_)[index], fmt::format("{}[{}]", key_, index)};
}

std::optional<JsonValue> JsonValue::find(std::string_view name) const {
  if (!tree(json_).is_object()) fail_expecting("an object");
  const auto found = tree(json_).find(name);
  if (found == tree(json_).end() || found->is_null()) return std::nullopt;
  return (*this)[name];
}

bool JsonValue::has(std::string_view name) const { return tree(json_).contains(name); }

bool JsonValue::is_null() const { return tree(json_).is_null(); }
bool JsonValue::is_list() const { return tree(json_).is_array(); }

std::size_t JsonValue::size() const {
  if (!is_list()) fail_expecting("a list");
  return tree(json_).size();
}

void JsonValue::for_each(const std::function<void(const JsonValue&)>& visit) const {
  for (std::size_t i = 0; i < size(); ++i) visit((*this)[i]);
}

void JsonValue::for_each_key(const std::function<void(const std::string&, const JsonValue&)>& visit) const {
  if (!tree(json_).is_object()) fail_expecting("an object");
  for (auto each = tree(json_).begin(); each != tree(json_).end(); ++each) {
    visit(each.key(), {document_, &*each, fmt::format("{}[{}]", key_, in_quotes(each.key()))});
  }
}

std::int64_t JsonValue::integer(std::int64_t lowest, std::int64_t highest) const {
  const Json& json = tree(json_);
  const bool is_past_kMax = json.is_number_unsigned() && json.get<std::uint64_t>() > static_cast<std::uint64_t>(kMax);
  const bool is_good =
      json.is_number_integer() && !is_past_kMax && json.get<std::int64_t>() >= lowest && json.get<std::int64_t>() <= highest;
  if (!is_good) {
    fail_expecting(fmt::format("a whole number from {}{}", lowest, highest < kMax ? fmt::format(" to {}", highest) : ""));
  }
  return json.get<std::int64_t>();
}

std::uint64_t JsonValue::unsigned_integer() const {
  if (!tree(json_).is_number_unsigned()) fail_expecting("a whole number from 0");
  return tree(json_).get<std::uint64_t>();
}

double JsonValue::number() const {
  if (!tree(json_).is_number()) fail_expecting("a number");
  return tree(json_).get<double>();
}

double JsonValue::number(double lowest, double highest) const {
  const double value = number();
  if (!(value >= lowest && value <= highest)) fail_expecting(fmt::format("a number from {} to {}", lowest, highest));
  return value;
}

bool JsonValue::boolean() const {
  if (!tree(json_).is_boolean()) fail_expecting("true or false");
  return tree(json_).get<bool>();
}

std::string JsonValue::text() const {
  if (!tree(json_).is_string()) fail_expecting("a text");
  return tree(json_).get<std::string>();
}

std::string JsonValue::dump() const { return dump_line(tree(json_)); }

void JsonValue::fail(std::string_view what) const {
  std::rethrow_exception(document_->make_error(fmt::format("{}: {}{}{}", document_->path, key_, key_.empty() ? "" : " ", what)));
}

void JsonValue::fail_expecting(std::string_view what) const { fail(fmt::format("is {}, expected {}", shortened(dump()), what)); }

std::string in_quotes(std::string_view text) { return shortened(dump_line(Json(std::string(text)))); }

}  // namespace mica::io
