#pragma once

#include <map>
#include <string>
#include <vector>

#include "mica/train/config.hpp"

namespace mica::train {

/// What may change between a checkpoint and the run that goes on from it (DESIGN section 6): mesh, fsdp, log, run and
/// checkpoint keys freely; optim, train and data with a word about it; what decides which data a step sees only with
/// checkpoint.allow_data_change; the model never.
/// @param saved_config  the checkpoint's resolved config.  @param place  for error texts.
/// @returns "optim.lr: 0.001 -> 0.0005" for what is worth telling.
/// @throws ConfigError naming the key and both values.
[[nodiscard]] std::vector<std::string> check_resume(const Config& config, const std::string& saved_config, const std::string& place);

/// The model keys as a checkpoint's manifest holds them.
[[nodiscard]] std::map<std::string, std::string> model_description(const Config& config);

}  // namespace mica::train
