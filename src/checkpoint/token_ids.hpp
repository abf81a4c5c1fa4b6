// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "mica/checkpoint/hf_tokenizer.hpp"
#include "mica/io/json.hpp"

namespace mica::checkpoint {

/// Reads the ids that the object has, in config.json or a manifest. @throws the object's error type if a value is not an id.
[[nodiscard]] TokenIds read_token_ids(const io::JsonValue& object);
[[nodiscard]] nlohmann::ordered_json to_json(const TokenIds& token_ids);

}  // namespace mica::checkpoint
