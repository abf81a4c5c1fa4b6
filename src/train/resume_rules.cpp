#include "mica/train/resume_rules.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "config_keys.hpp"
#include "mica/core/error.hpp"

namespace mica::train {
namespace {

constexpr std::array<std::string_view, 4> kFree{"mesh.", "fsdp.", "log.", "run.name"};
constexpr std::array<std::string_view, 3> kDecidesData{"train.seq_len", "train.global_batch", "data.order"};

bool is_free(std::string_view key) {
  for (const std::string_view prefix : kFree) {
    if (key.starts_with(prefix)) return true;
  }
  return key == "run.dir" || key == "model.init_from" || key.starts_with("checkpoint.") || key == "train.log_interval" || key == "train.eval_interval" ||
         key == "train.eval_batches" || key == "train.drift_interval" ||
         key == "train.max_hours";
}

/// Dropout is of training, not of the model's shape; init_from is over when the first step begins.
bool is_of_model(std::string_view key) {
  return key.starts_with("model.") && key != "model.dropout" && key != "model.init_from";
}

}  // namespace

std::vector<std::string> check_resume(const Config& config, const std::string& saved_config, const std::string& place) {
  const Config saved = parse_config({place + "/manifest.json (config)", saved_config}, {});
  std::vector<std::string> told;
  for (const KeyChange& change : compare_configs(saved, config)) {
    if (is_free(change.key)) continue;
    require<ConfigError>(!is_of_model(change.key) && change.key != "run.seed",
                         "{} was saved with {} = {}, but this run has {}: a checkpoint goes on only with the model and seed it "
                         "was made with; set it back, or start anew in another run.dir",
                         place, change.key, change.before, change.after);
    const bool decides_data = std::ranges::find(kDecidesData, change.key) != kDecidesData.end();
    require<ConfigError>(!decides_data || config.checkpoint.allow_data_change,
                         "{} was saved with {} = {}, but this run has {}: later steps would see other data; set it back, or "
                         "allow it with --checkpoint.allow_data_change=true",
                         place, change.key, change.before, change.after);
    told.push_back(fmt::format("{}: {} -> {}", change.key, change.before, change.after));
  }
  return told;
}

std::map<std::string, std::string> model_description(const Config& config) {
  std::map<std::string, std::string> description;
  for (const ConfigKey& key : config_keys()) {
    if (is_of_model(key.name) || key.name == "model.dropout") description[key.name.substr(6)] = key.get(config);
  }
  return description;
}

}  // namespace mica::train
