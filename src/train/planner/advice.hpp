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

/// Tries strategies, shard sizes, wrapping, activation checkpointing and micro-batches. @returns those that fit, the fastest first. All
/// other keys keep the config's values; with train.global_batch = 0 the global batch may change too.
[[nodiscard]] std::vector<Choice> find_choices(const Config& config, const Cluster& cluster);

/// Where a step's time goes, in one sentence.
[[nodiscard]] std::string why(const Forecast& forecast);

}  // namespace mica::train
