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

/// Ways that fit, the fastest first, out of strategies, shard sizes, wrapping, recomputation and micro-batches. The config's own other
/// keys stay, train.global_batch among them: where it is 0 the micro-batch may grow.
[[nodiscard]] std::vector<Choice> find_choices(const Config& config, const Cluster& cluster);

/// What a step's time goes to, in one sentence.
[[nodiscard]] std::string why(const Forecast& forecast);

}  // namespace mica::train
