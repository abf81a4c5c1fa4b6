// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/train/forecast.hpp"

namespace mica::train {

/// One way to train the config's model on the cluster.
struct Choice {
  std::string keys;  ///< "--fsdp.strategy=full_shard --train.micro_batch=4", to be added to the command
  Forecast forecast;
};

/// A way to train that mica-train or mica-plan refuses for this config.
struct Refusal {
  std::string keys;
  std::string reason;
};

struct Advice {
  std::vector<Choice> choices;  ///< those that fit, the fastest first
  std::vector<Refusal> refused;
  int num_too_large = 0;  ///< ways for which no micro-batch fits
};

/// Tries strategies, shard sizes, wrapping, activation checkpointing and micro-batches. All other keys keep the config's values, but
/// reshard_after_forward and keys that a choice leaves without an effect get their defaults; with
/// train.global_batch = 0 the global batch may change too.
[[nodiscard]] Advice find_choices(const Config& config, const Cluster& cluster);

/// Where a step's time goes, in one sentence.
[[nodiscard]] std::string why(const Forecast& forecast);

}  // namespace mica::train
