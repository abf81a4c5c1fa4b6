#include "json_text.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <vector>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::checkpoint {

Json read_json_object(const std::string& path, std::int64_t max_bytes) {
  std::error_code error;
  require<ConfigError>(std::filesystem::is_regular_file(path, error), "{}: no such file", path);
  const std::int64_t bytes = io::RawFile::open_for_reading(path).file_bytes();
  require<CheckpointError>(bytes <= max_bytes, "{}: has {} bytes, expected at most {}", path, bytes, max_bytes);
  constexpr int kDeepest = 16;
  std::vector<std::set<std::string>> keys;  // of the objects that are open; a tree would keep the last of two silently
  const auto watch = [&](int depth, Json::parse_event_t event, const Json& value) {
    require<CheckpointError>(depth <= kDeepest, "{}: is nested deeper than {} levels", path, kDeepest);
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) {
      require<CheckpointError>(keys.back().insert(value.get<std::string>()).second, "{}: has the key {} twice", path,
                               value.dump());
    }
    return true;
  };
  const std::string text = io::read_file(path);
  try {
    Json json = Json::parse(text, watch);
    require<CheckpointError>(json.is_object(), "{}: is no JSON object", path);
    return json;
  } catch (const Json::exception& e) {
    std::string what = e.what();
    std::ranges::replace(what, '\n', ' ');
    throw CheckpointError(fmt::format("{}: no valid JSON: {}", path, what));
  }
}

}  // namespace mica::checkpoint
