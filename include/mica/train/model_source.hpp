#pragma once

#include "mica/comm/host_comm.hpp"
#include "mica/train/config.hpp"

namespace mica::train {

/// With model.init_from: the keys of [model] that the user did not set get the values of that folder, or of the checkpoint
/// that the run goes on from. Rank 0 reads, all others are told. @collective
/// @throws ConfigError, CheckpointError on all ranks: the folder cannot be read; keys that the user set to other values
///         than the folder's, all of them.
void take_model_keys(const HostComm& comm, Config& config);

}  // namespace mica::train
