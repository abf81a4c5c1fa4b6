// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mica/comm/host_comm.hpp"
#include "mica/train/config.hpp"

namespace mica::train {

/// Sets the keys of [model] that the user did not set from a folder: of a checkpoint, a run, or Hugging Face. Dropout, which is of
/// training, stays. Rank 0 reads and tells the others. @collective @throws ConfigError, CheckpointError on all ranks
void read_model_keys(const HostComm& comm, const std::string& folder, Config& config);

/// With model.init_from, sets the keys of [model] that the user did not set from that folder, or from the checkpoint that the
/// run resumes from. Rank 0 reads and tells the others. @collective
/// @throws ConfigError, CheckpointError on all ranks: the folder cannot be read; keys that the user set to other values than the
///         folder's, all listed.
void take_model_keys(const HostComm& comm, Config& config);

}  // namespace mica::train
