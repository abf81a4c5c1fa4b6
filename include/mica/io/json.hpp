// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace mica::io {

/// A value of an untrusted JSON file, and its place in it: "files[2].datasets[0].bytes". Each read says what it expects;
/// anything else is an error "PATH: KEY is SEEN, expected WHAT" of the type that parse() was given. Copies are cheap and keep
/// the whole document alive.
class JsonValue {
 public:
  static constexpr int kMaxDepth = 16;  ///< far more than Mica's files need
  static constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

  /// Parses `text`, which must be an object. @throws Syntax if it is not JSON, not an object, nested deeper than max_depth, or
  /// has a key twice in one object; reads of its values throw Value. @param path  for error texts.
  template <class Syntax, class Value = Syntax>
  [[nodiscard]] static JsonValue parse(std::string_view text, const std::string& path, int max_depth = kMaxDepth) {
    return parse(text, path, max_depth, {&error_of<Syntax>, &error_of<Value>});
  }
  /// Parses a file. @throws ConfigError if there is none, Syntax also if it is longer than max_bytes, IoError.
  template <class Syntax, class Value = Syntax>
  [[nodiscard]] static JsonValue read(const std::string& path, std::int64_t max_bytes) {
    return read(path, max_bytes, {&error_of<Syntax>, &error_of<Value>});
  }

  /// A member of an object, which must have the key.
  [[nodiscard]] JsonValue operator[](std::string_view name) const;
  /// An element of a list, which must be long enough.
  [[nodiscard]] JsonValue operator[](std::size_t index) const;
  /// A member of an object; nothing if the key is missing or null.
  [[nodiscard]] std::optional<JsonValue> find(std::string_view name) const;
  /// Whether this is an object that has the key.
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] bool is_null() const;
  [[nodiscard]] bool is_list() const;
  [[nodiscard]] std::size_t size() const;                                         ///< of a list
  void for_each(const std::function<void(const JsonValue& value)>& visit) const;  ///< of a list, in order
  /// Visits an object's members, by key.
  void for_each_key(const std::function<void(const std::string& key, const JsonValue& value)>& visit) const;

  [[nodiscard]] std::int64_t integer(std::int64_t lowest, std::int64_t highest = kMax) const;
  [[nodiscard]] std::uint64_t unsigned_integer() const;
  [[nodiscard]] double number() const;
  /// From `lowest` to `highest`.
  [[nodiscard]] double number(double lowest, double highest) const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::string text() const;
  /// As JSON, on one line.
  [[nodiscard]] std::string dump() const;

  /// Throws "PATH: KEY WHAT".
  [[noreturn]] void fail(std::string_view what) const;
  /// Throws "PATH: KEY is SEEN, expected WHAT".
  [[noreturn]] void fail_expecting(std::string_view what) const;

 private:
  using MakeError = std::exception_ptr (*)(const std::string& text);
  struct Errors {
    MakeError syntax, value;
  };
  struct Document;
  template <class E>
  static std::exception_ptr error_of(const std::string& text) {
    return std::make_exception_ptr(E(text));
  }
  static JsonValue parse(std::string_view text, const std::string& path, int max_depth, Errors errors);
  static JsonValue read(const std::string& path, std::int64_t max_bytes, Errors errors);
  JsonValue(std::shared_ptr<const Document> document, const void* json, std::string key)
      : document_(std::move(document)), json_(json), key_(std::move(key)) {}

  std::shared_ptr<const Document> document_;
  const void* json_;  // in document_'s tree; only json.cpp knows its type
  std::string key_;   // "" for the whole
};

/// `text` quoted as in JSON, on one line and shortened if long, for error texts.
[[nodiscard]] std::string in_quotes(std::string_view text);

}  // namespace mica::io
