// SPDX-License-Identifier: Apache-2.0
#include "token_ids.hpp"

#include <limits>
#include <optional>

namespace mica::checkpoint {

TokenIds read_token_ids(const io::JsonValue& object) {
  // Some folders have -1 if there is no such token.
  const auto id = [](const io::JsonValue& value) { return value.integer(-1, std::numeric_limits<std::int32_t>::max()); };
  TokenIds token_ids;
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const std::optional<io::JsonValue> value = object.find(key);  // throws unless `object` is an object
    if (!object.has(key)) continue;
    std::vector<std::int64_t>& ids = token_ids[key];
    if (!value) continue;  // null
    if (value->is_list()) {
      value->for_each([&](const io::JsonValue& each) { ids.push_back(id(each)); });
    } else {
      ids.push_back(id(*value));
    }
  }
  return token_ids;
}

nlohmann::ordered_json to_json(const TokenIds& token_ids) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [key, ids] : token_ids) {
    nlohmann::ordered_json& value = json[key];  // null
    if (ids.size() == 1) value = ids[0];
    if (ids.size() > 1) value = ids;
  }
  return json;
}

}  // namespace mica::checkpoint
