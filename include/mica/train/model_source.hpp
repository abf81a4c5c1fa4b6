// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mica/comm/host_comm.hpp"
#include "mica/train/config.hpp"

namespace mica::train {

/// Fills in the keys of [model] that the user did not set from a folder: a checkpoint, a run or a Hugging Face model. Dropout belongs to
/// training and is not taken. Rank 0 reads and broadcasts. @collective @throws ConfigError, CheckpointError on all ranks
void read_model_keys(const HostComm& comm, const std::string& folder, Config& config);

/// With model.init_from, fills in the keys of [model] that the user did not set from that folder. Rank 0 reads and broadcasts. @collective
/// @throws ConfigError, CheckpointError on all ranks: the folder cannot be read; keys that the user set to values other than the folder's,
/// all listed.
void take_init_keys(const HostComm& comm, Config& config);

/// The same for a run: from the checkpoint that it resumes from, if there is one. @collective
void take_model_keys(const HostComm& comm, Config& config);

}  // namespace mica::train
