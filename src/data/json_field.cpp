#include "json_field.hpp"

#include <array>

#include "mica/core/error.hpp"

namespace mica::data {
namespace {

constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxQuotedBytes = 300;

}  // namespace

std::string in_quotes(std::string_view text) {
  const bool is_long = text.size() > kMaxQuotedBytes;
  const std::string shown(text.substr(0, kMaxQuotedBytes));
  return nlohmann::json(shown).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + (is_long ? "..." : "");
}

JsonDocument parse_json(std::string_view text, const std::string& path, std::string_view outer,
                        std::string_view inner) {
  using Event = nlohmann::json::parse_event_t;
  JsonDocument document;
  std::array<std::string, 2> open_keys;  // the keys of depth 1 and 2 inside which the parser is
  const auto watch = [&](int depth, Event event, nlohmann::json& value) {
    require<ConfigError>(depth < kMaxDepth, "{}: is nested more than {} levels deep", path, kMaxDepth);
    if (event != Event::key) return true;
    const auto& key = value.get_ref<const std::string&>();
    if (depth == 1) open_keys = {key, ""};
    if (depth == 2) open_keys[1] = key;
    if (depth == 3 && open_keys[0] == outer && open_keys[1] == inner) ++document.num_counted_keys;
    return true;
  };
  try {
    document.json = nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("{}: is no JSON: {}", path, error.what()));
  }
  return document;
}

JsonField JsonField::operator[](const char* name) const {
  const std::string key = key_.empty() ? name : key_ + "." + name;
  if (!json_.is_object()) fail("is no object");
  const auto found = json_.find(name);
  require<ConfigError>(found != json_.end(), "{}: the key {} is missing", path_, key);
  return {*found, path_, key};
}

JsonField JsonField::operator[](std::size_t index) const {
  if (index >= size()) fail(fmt::format("has {} entries, expected at least {}", size(), index + 1));
  return {json_[index], path_, fmt::format("{}[{}]", key_, index)};
}

bool JsonField::is_null_or_missing(const char* name) const {
  if (!json_.is_object()) fail("is no object");
  const auto found = json_.find(name);
  return found == json_.end() || found->is_null();
}

std::size_t JsonField::size() const {
  if (!json_.is_array()) fail("is no list");
  return json_.size();
}

std::int64_t JsonField::integer(std::int64_t lowest, std::int64_t highest) const {
  if (!json_.is_number_integer()) fail("is no integer");
  // Unsigned values past int64 compare as what they are, not as negative ones.
  const bool is_inside = json_.is_number_unsigned() && highest >= 0
                             ? json_.get<std::uint64_t>() <= static_cast<std::uint64_t>(highest) &&
                                   (lowest <= 0 || json_.get<std::uint64_t>() >= static_cast<std::uint64_t>(lowest))
                             : json_.get<std::int64_t>() >= lowest && json_.get<std::int64_t>() <= highest;
  if (!is_inside) fail(fmt::format("is {}, expected an integer from {} to {}", json_.dump(), lowest, highest));
  return json_.get<std::int64_t>();
}

double JsonField::number() const {
  if (!json_.is_number()) fail("is no number");
  return json_.get<double>();
}

bool JsonField::boolean() const {
  if (!json_.is_boolean()) fail("is neither true nor false");
  return json_.get<bool>();
}

std::string JsonField::text() const {
  if (!json_.is_string()) fail("is no text");
  return json_.get<std::string>();
}

void JsonField::fail(std::string_view what) const {
  throw ConfigError(fmt::format("{}: {} {}", path_, key_.empty() ? "the document" : key_, what));
}

}  // namespace mica::data
