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

/// A value of a JSON file that nobody vouches for, and where it stands: "files[2].datasets[0].bytes". Each read says what
/// it expects; what is not so is an error "PATH: KEY is SEEN, expected WHAT" of the type that parse() was given. Copies
/// are cheap and keep the whole text's values alive.
class JsonValue {
 public:
  static constexpr int kMaxDepth = 16;  ///< far past what Mica reads
  static constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

  /// The object that `text` is. @throws Syntax for what is no JSON, no object, nested deeper than max_depth or has a key
  /// twice in one object; reads of its values throw Value.   @param path  for error texts.
  template <class Syntax, class Value = Syntax>
  [[nodiscard]] static JsonValue parse(std::string_view text, const std::string& path, int max_depth = kMaxDepth) {
    return parse(text, path, max_depth, {&error_of<Syntax>, &error_of<Value>});
  }
  /// The same of a file. @throws ConfigError where there is none, Syntax where it is longer than max_bytes, IoError.
  template <class Syntax, class Value = Syntax>
  [[nodiscard]] static JsonValue read(const std::string& path, std::int64_t max_bytes) {
    return read(path, max_bytes, {&error_of<Syntax>, &error_of<Value>});
  }

  /// Of an object that must have the key.
  [[nodiscard]] JsonValue operator[](std::string_view name) const;
  /// Of a list that must be that long.
  [[nodiscard]] JsonValue operator[](std::size_t index) const;
  /// Of an object. Nothing where the key is missing or null.
  [[nodiscard]] std::optional<JsonValue> find(std::string_view name) const;
  /// Is this an object with such a key?
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] bool is_null() const;
  [[nodiscard]] bool is_list() const;
  [[nodiscard]] std::size_t size() const;  ///< of a list
  void for_each(const std::function<void(const JsonValue& value)>& visit) const;  ///< of a list, in order
  /// Of an object, by key.
  void for_each_key(const std::function<void(const std::string& key, const JsonValue& value)>& visit) const;

  [[nodiscard]] std::int64_t integer(std::int64_t lowest, std::int64_t highest = kMax) const;
  [[nodiscard]] std::uint64_t unsigned_integer() const;
  [[nodiscard]] double number() const;
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
  const void* json_;  // of document_'s tree; its type is known in json.cpp alone
  std::string key_;   // "" for the whole
};

/// `text` as JSON would have it, on one line and shortened where it is long, for error texts.
[[nodiscard]] std::string in_quotes(std::string_view text);

}  // namespace mica::io
