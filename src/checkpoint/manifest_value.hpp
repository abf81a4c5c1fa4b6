#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "mica/core/error.hpp"

namespace mica::checkpoint {

/// A value of the manifest and where it stands, for error texts: "files[2].datasets[0].bytes". Each read says what it
/// expects. @throws DamagedCheckpointError naming file and key
class ManifestValue {
 public:
  using Json = nlohmann::ordered_json;
  static constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

  ManifestValue(const Json& json, const std::string& path, std::string key) : json_(json), path_(path), key_(std::move(key)) {}

  [[nodiscard]] ManifestValue operator[](const char* name) const {
    const std::string key = key_.empty() ? name : key_ + "." + name;
    if (!json_.is_object()) fail("is no object");
    const auto found = json_.find(name);
    if (found == json_.end()) throw DamagedCheckpointError(fmt::format("{}: the key {} is missing", path_, key));
    return {*found, path_, key};
  }
  template <class Visit>
  void for_each(Visit visit) const {
    if (!json_.is_array()) fail("is no list");
    for (std::size_t i = 0; i < json_.size(); ++i) visit(ManifestValue(json_[i], path_, fmt::format("{}[{}]", key_, i)));
  }
  [[nodiscard]] bool is_null() const { return json_.is_null(); }
  [[nodiscard]] std::int64_t integer(std::int64_t lowest, std::int64_t highest = kMax) const {
    if (!json_.is_number_integer()) fail("is no integer");
    const bool too_large = json_.is_number_unsigned() && json_.get<std::uint64_t>() > static_cast<std::uint64_t>(kMax);
    const std::int64_t value = too_large ? kMax : json_.get<std::int64_t>();
    if (too_large || value < lowest || value > highest) {
      fail(fmt::format("is {}, expected an integer from {} to {}", json_.dump(), lowest, highest));
    }
    return value;
  }
  [[nodiscard]] int small_integer(int lowest) const {
    return static_cast<int>(integer(lowest, std::numeric_limits<int>::max()));
  }
  [[nodiscard]] std::uint64_t unsigned_integer() const {
    if (!json_.is_number_unsigned()) fail("is no integer of 0 or more");
    return json_.get<std::uint64_t>();
  }
  [[nodiscard]] std::string text() const {
    if (!json_.is_string()) fail("is no text");
    return json_.get<std::string>();
  }
  [[nodiscard]] std::map<std::string, std::string> text_map() const {
    if (!json_.is_object()) fail("is no object");
    std::map<std::string, std::string> map;
    for (const auto& [name, value] : json_.items()) map[name] = ManifestValue(value, path_, key_ + "." + name).text();
    return map;
  }
  [[nodiscard]] std::map<std::string, double> number_map() const {
    if (!json_.is_object()) fail("is no object");
    std::map<std::string, double> map;
    for (const auto& [name, value] : json_.items()) {
      if (!value.is_number()) ManifestValue(value, path_, key_ + "." + name).fail("is no number");
      map[name] = value.get<double>();
    }
    return map;
  }
  [[nodiscard]] std::map<std::string, std::int64_t> integer_map() const {
    if (!json_.is_object()) fail("is no object");
    std::map<std::string, std::int64_t> map;
    for (const auto& [name, value] : json_.items()) map[name] = ManifestValue(value, path_, key_ + "." + name).integer(0);
    return map;
  }
  [[nodiscard]] std::vector<std::uint32_t> crcs() const {
    const std::string all = text();
    std::vector<std::uint32_t> crcs;
    for (std::size_t at = 0; at < all.size(); at += 9) {
      const std::string one = all.substr(at, 8);
      const bool ends_well = at + 8 == all.size() || (at + 9 < all.size() && all[at + 8] == ' ');
      if (one.size() != 8 || one.find_first_not_of("0123456789abcdef") != std::string::npos || !ends_well) {
        fail(fmt::format("has no checksum of 8 hexadecimal digits at character {}", at));
      }
      crcs.push_back(static_cast<std::uint32_t>(std::stoul(one, nullptr, 16)));
    }
    return crcs;
  }
  [[nodiscard]] std::uint32_t crc() const {
    const std::vector<std::uint32_t> one = crcs();
    if (one.size() != 1) fail("is not one checksum");
    return one[0];
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw DamagedCheckpointError(fmt::format("{}: {} {}", path_, key_.empty() ? "the manifest" : key_, what));
  }

 private:
  const Json& json_;
  const std::string& path_;
  std::string key_;
};

}  // namespace mica::checkpoint
