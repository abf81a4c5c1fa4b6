#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace mica::checkpoint {

using Json = nlohmann::ordered_json;

/// Parses a small JSON file of a stranger's. @param max_bytes  a longer file is refused.
/// @throws ConfigError (missing), CheckpointError: no JSON, no object, a key twice in one object, nested deeper
/// than 16.
[[nodiscard]] Json read_json_object(const std::string& path, std::int64_t max_bytes);

}  // namespace mica::checkpoint
