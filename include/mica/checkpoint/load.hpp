// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"
#include "mica/comm/host_comm.hpp"
#include "mica/fsdp/root.hpp"
#include "mica/optim/optimizer.hpp"

namespace mica::checkpoint {

/// Where a checkpoint is loaded into.
struct LoadTarget {
  fsdp::Root* root = nullptr;             ///< initialised: its units have storage
  optim::Optimizer* optimizer = nullptr;  ///< null: parameters only
  int omp_threads = 0;                    ///< compared with the checkpoint's; 0: not compared
};

struct LoadReport {
  std::int64_t bytes = 0;  ///< read by this rank; together, the ranks read each byte that the model needs once
  double ms = 0;
  std::vector<std::string> notes;                ///< differences that may change results; the same on all ranks
  std::shared_ptr<const HfTokenizer> tokenizer;  ///< on rank 0, if the checkpoint has one: for SaveState
};

/// The manifest of a checkpoint's folder, read once, to compare configs before load(). Complete on rank 0; the other ranks get it
/// without files and index, whose size grows with the number of ranks.
/// @throws DamagedCheckpointError (with the name of the next older complete checkpoint), CheckpointError. @collective
[[nodiscard]] Manifest open_checkpoint(const std::string& checkpoint_folder, const HostComm& comm);

/// Reads every rank's shards of parameters and optimizer state in place, bit for bit, and sets the optimizer's step count;
/// ignored parameters (which need not have been ignored when they were saved) and module buffers whole, on every rank, rounded
/// if their dtype has fewer bits than the saved one, with a note. The mesh, sharding and wrapping at the time of the save may differ:
/// every block is read and checked by one rank, which sends its elements to the ranks that hold them ([Note: shared reading],
/// shared_read.hpp). The optimizer's state is loaded if it has the same kinds; otherwise it starts from zero, at step 0, and a
/// note says so.
/// @throws CheckpointError  for another model, naming the first parameter that differs and both shapes;
///         DamagedCheckpointError naming file, dataset and byte range, and the next older complete checkpoint.
///         Thrown on all ranks. The target's values are undefined afterwards.
/// @param manifest  from open_checkpoint(), on every rank. @collective over `comm`: all ranks of the mesh. Between passes;
/// waits for the compute stream.
LoadReport load(const std::string& checkpoint_folder, const Manifest& manifest, const LoadTarget& target, const HostComm& comm);

}  // namespace mica::checkpoint
