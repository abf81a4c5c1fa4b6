// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "mica/checkpoint/hf_tokenizer.hpp"
#include "mica/io/json.hpp"

namespace mica::checkpoint {

/// Those that the object has; the same in config.json and in a manifest. @throws the object's error for what is no id.
[[nodiscard]] TokenIds read_token_ids(const io::JsonValue& object);
[[nodiscard]] nlohmann::ordered_json to_json(const TokenIds& token_ids);

}  // namespace mica::checkpoint
