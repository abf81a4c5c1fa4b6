// SPDX-License-Identifier: Apache-2.0
#include "model_keys.hpp"

#include <charconv>

#include "mica/core/error.hpp"

namespace mica::checkpoint {
namespace {

template <class T>
T number(const std::string& text, const std::string& key, const std::string& place) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  require<CheckpointError>(error == std::errc{} && rest == end, "{}: model.{} is '{}', expected a number", place, key, text);
  return value;
}

}  // namespace

const std::string& ModelKeys::text(const std::string& key) const {
  const auto found = keys_.find(key);
  require<CheckpointError>(found != keys_.end(), "{}: model.{} is missing", place_, key);
  return found->second;
}

std::int64_t ModelKeys::integer(const std::string& key) const {
  const auto value = number<std::int64_t>(text(key), key, place_);
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  require<CheckpointError>(value >= 0 && value <= kMost, "{}: model.{} is {}, expected 0 to {}", place_, key, value, kMost);
  return value;
}

double ModelKeys::real(const std::string& key) const { return number<double>(text(key), key, place_); }

bool ModelKeys::flag(const std::string& key) const {
  const std::string& value = text(key);
  require<CheckpointError>(value == "true" || value == "false", "{}: model.{} is '{}', expected true or false", place_, key, value);
  return value == "true";
}

}  // namespace mica::checkpoint
