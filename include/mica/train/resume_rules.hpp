// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"
#include "mica/train/config.hpp"

namespace mica::train {

/// The number of sequences per step belongs to the run, not to the launch: train.global_batch = 0 is replaced by the checkpoint's value.
[[nodiscard]] Config with_batch_of(const Config& config, const checkpoint::Manifest& manifest, const std::string& place);

/// The tokens of data.train.
struct TrainingData {
  std::string fingerprint;  ///< data::TokenDataset::fingerprint()
  std::int64_t num_tokens = 0;
};

/// How a run continues from a checkpoint.
struct Continuation {
  std::int64_t sequences = 0;        ///< seen by the run so far, so also the index of the next one
  std::vector<std::string> changes;  ///< "optim.lr: 0.001 -> 0.0005", to report to the user
  bool is_loss_scale_new = false;    ///< the run goes on with optim.loss_scale and not with the checkpoint's
};
/// Checks what may change between a checkpoint and the run that resumes from it: mesh, fsdp, log, run and checkpoint keys freely, but for
/// what is trained and in which precision; that, optim, train and data keys with a notice; what decides which data a step sees (seq_len,
/// global_batch, order, the tokens themselves) only with checkpoint.allow_data_change; the model never.
/// @param config  with_batch_of().  @param place  for error texts.
/// @throws ConfigError naming the key and both values.
[[nodiscard]] Continuation check_resume(const Config& config, const checkpoint::Manifest& manifest, const TrainingData& data,
                                        const std::string& place);

/// What a user whose run has saved and stopped is told to do: "start the same command again", with checkpoint.resume=auto if that is none,
/// which refuses a folder that holds a checkpoint.
[[nodiscard]] std::string how_to_go_on(const Config& config);

/// The [model] keys as in a checkpoint's manifest.
[[nodiscard]] std::map<std::string, std::string> model_description(const Config& config);

}  // namespace mica::train
