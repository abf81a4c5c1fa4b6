#pragma once

// Private to data: JSON that nobody vouches for.

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace mica::data {

/// `text` in quotes and on one line, shortened where it is long, for error texts.
[[nodiscard]] std::string in_quotes(std::string_view text);

struct JsonDocument {
  nlohmann::json json;
  std::int64_t num_counted_keys = 0;  ///< of the object OUTER.INNER, equal ones as often as they stand
};

/// Nothing nests deeper than a few levels in what Mica reads: deeper files are refused before they cost memory.
/// @param path  for error texts.   @param outer, inner  the object whose keys are counted.
/// @throws ConfigError
[[nodiscard]] JsonDocument parse_json(std::string_view text, const std::string& path, std::string_view outer,
                                      std::string_view inner);

/// A value and where it stands: "added_tokens[2].content". All access checks what is there. @throws ConfigError
class JsonField {
 public:
  JsonField(const nlohmann::json& json, const std::string& path, std::string key)
      : json_(json), path_(path), key_(std::move(key)) {}

  /// The value must have such a key or index.
  [[nodiscard]] JsonField operator[](const char* name) const;
  [[nodiscard]] JsonField operator[](std::size_t index) const;
  [[nodiscard]] bool has(const char* name) const { return json_.is_object() && json_.contains(name); }
  [[nodiscard]] bool is_null_or_missing(const char* name) const;
  [[nodiscard]] bool is_array() const { return json_.is_array(); }
  /// Of a list.
  [[nodiscard]] std::size_t size() const;

  [[nodiscard]] std::int64_t integer(std::int64_t lowest, std::int64_t highest) const;
  [[nodiscard]] double number() const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::string text() const;

  /// visit(value) for a list's values in order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t i = 0; i < size(); ++i) visit((*this)[i]);
  }
  /// visit(key, value) for an object's keys.
  template <class Visit>
  void for_each_key(const Visit& visit) const {
    if (!json_.is_object()) fail("is no object");
    for (const auto& [name, value] : json_.items())
      visit(name, JsonField(value, path_, key_ + "[" + in_quotes(name) + "]"));
  }

  /// "PATH: KEY WHAT"
  [[noreturn]] void fail(std::string_view what) const;

 private:
  const nlohmann::json& json_;
  const std::string& path_;
  std::string key_;  ///< "" for the whole document
};

}  // namespace mica::data
