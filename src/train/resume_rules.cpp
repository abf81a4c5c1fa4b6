// SPDX-License-Identifier: Apache-2.0
#include "mica/train/resume_rules.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "mica/core/error.hpp"
#include "mica/core/rounding.hpp"

#include "config_keys.hpp"
#include "idle_keys.hpp"

namespace mica::train {
namespace {

constexpr std::array<std::string_view, 5> kFreePrefixes{"mesh.", "fsdp.", "log.", "run.name", "run.take_over"};
/// Keys with a free prefix that decide what is trained, or in which precision.
constexpr std::array<std::string_view, 6> kTold{
    "fsdp.freeze", "fsdp.ignore", "fsdp.param_dtype", "fsdp.reduce_dtype", "fsdp.gradient_compression", "fsdp.keep_low_precision_grads"};
constexpr std::array<std::string_view, 3> kDecidesData{"train.seq_len", "train.global_batch", "data.order"};

bool is_free(std::string_view key) {
  if (std::ranges::find(kTold, key) != kTold.end()) return false;
  for (const std::string_view prefix : kFreePrefixes) {
    if (key.starts_with(prefix)) return true;
  }
  return key == "run.dir" || key.starts_with("checkpoint.") || key == "train.log_interval" || key == "train.eval_interval" ||
         key == "train.eval_batches" || key == "train.drift_interval" || key == "train.max_hours";
}

/// Dropout belongs to training, not to the model; init_from has no effect after the first step.
bool is_of_model(std::string_view key) { return key.starts_with("model.") && key != "model.dropout" && key != "model.init_from"; }

std::vector<std::string> check_keys(const Config& config, const Config& saved, const std::string& place) {
  std::vector<std::string> told;
  for (const KeyChange& change : compare_configs(saved, config)) {
    if (change.key == "train.eval_batches" && config.checkpoint.keep_best > 0) {
      told.push_back(fmt::format(
          "train.eval_batches: {} -> {}: checkpoint.keep_best compares losses of the same sequences only, and keeps no checkpoint "
          "for a loss of others",
          change.before, change.after));
    }
    if (is_free(change.key)) continue;
    if (is_idle(config, change.key) && is_idle(saved, change.key)) continue;
    if (change.key == "model.init_from") {
      if (!config.model.init_from.empty())
        told.push_back(
            fmt::format("model.init_from: {} is not read, since the run resumes with its own model; choose another run.dir to "
                        "start from it",
                        change.after));
      continue;
    }
    require<ConfigError>(!is_of_model(change.key) && change.key != "run.seed",
                         "{} was saved with {} = {}, but this run has {}: a run resumes only with the model and seed that it "
                         "started with; set it back, or start a new run in another run.dir",
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

/// The config that a checkpoint was saved with, with the resolved batch.
Config saved_config(const checkpoint::Manifest& manifest, const std::string& place) {
  Config saved = parse_config({place + "/manifest.json (config)", manifest.config}, {});
  if (manifest.global_batch > 0) {
    saved.train.global_batch = manifest.global_batch;
  } else if (saved.train.global_batch == 0 && manifest.step > 0) {  // format 3: all steps had the same number of tokens
    saved.train.global_batch = manifest.tokens / manifest.step / saved.train.seq_len;
  }
  return saved;
}

/// The first sequence of the new length that shares no token with the first `sequences` of the old length. This holds for data.order =
/// sequential; a shuffled order differs when the number of sequences does.
std::int64_t with_seq_len(std::int64_t sequences, std::int64_t before, std::int64_t now, std::int64_t num_tokens) {
  const std::int64_t per_epoch_before = std::max<std::int64_t>(1, (num_tokens - 1) / before);
  const std::int64_t per_epoch_now = std::max<std::int64_t>(1, (num_tokens - 1) / now);
  const std::int64_t tokens_of_epoch = sequences % per_epoch_before * before;
  return sequences / per_epoch_before * per_epoch_now + divide_up(tokens_of_epoch, now);
}

}  // namespace

Config with_batch_of(const Config& config, const checkpoint::Manifest& manifest, const std::string& place) {
  Config adopted = config;
  if (config.train.global_batch == 0) adopted.train.global_batch = saved_config(manifest, place).train.global_batch;
  return adopted;
}

Continuation check_resume(const Config& config, const checkpoint::Manifest& manifest, const TrainingData& data, const std::string& place) {
  const Config saved = saved_config(manifest, place);
  Continuation next{.sequences = manifest.global_batch > 0 ? manifest.sequences : manifest.step * saved.train.global_batch,
                    .changes = check_keys(config, saved, place),
                    .is_loss_scale_new = config.optim.loss_scale != saved.optim.loss_scale};
  if (!manifest.data.empty() && manifest.data != data.fingerprint) {
    require<ConfigError>(config.checkpoint.allow_data_change,
                         "{} was trained on other tokens: data.train had {}, and has {}: later steps would see other data; name the "
                         "same files, or allow it with --checkpoint.allow_data_change=true",
                         place, manifest.data, data.fingerprint);
    next.changes.push_back(fmt::format("the tokens of data.train: {} -> {}", manifest.data, data.fingerprint));
  }
  if (saved.train.seq_len != config.train.seq_len) {
    next.sequences = with_seq_len(next.sequences, saved.train.seq_len, config.train.seq_len, data.num_tokens);
  }
  return next;
}

std::string how_to_go_on(const Config& config) {
  return fmt::format("start the same command again{}", config.checkpoint.resume == "none" ? " with --checkpoint.resume=auto" : "");
}

std::map<std::string, std::string> model_description(const Config& config) {
  std::map<std::string, std::string> description;
  for (const ConfigKey& key : config_keys()) {
    if (is_of_model(key.name) || key.name == "model.dropout") description[key.name.substr(6)] = key.get(config);
  }
  return description;
}

}  // namespace mica::train
