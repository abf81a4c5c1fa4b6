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
  std::int64_t bytes = 0;                        ///< read by this rank; all ranks together read what the model needs of the checkpoint
  double ms = 0;                                 ///< reading and checking
  std::vector<std::string> notes;                ///< what differs and may change results; the same on all ranks
  std::shared_ptr<const HfTokenizer> tokenizer;  ///< on rank 0, of a checkpoint that has one: for SaveState
};

/// The manifest of a checkpoint's folder, read once, to compare configs before load(): whole on rank 0; the other ranks get it
/// without files and index, whose size grows with the number of ranks.
/// @throws DamagedCheckpointError (with the next good checkpoint's name), CheckpointError. @collective
[[nodiscard]] Manifest open_checkpoint(const std::string& checkpoint_folder, const HostComm& comm);

/// Reads every rank's shards of parameters and optimizer state in place, bit for bit, and sets the optimizer's step count;
/// ignored parameters (which need not have been ignored when they were saved) and module buffers whole, on every rank, rounded
/// if their dtype has fewer bits than the saved one, with a note. The mesh, sharding and wrapping that wrote them may differ:
/// every block is read and checked by one rank, which sends its elements to the ranks that hold them ([Note: shared reading],
/// shared_read.hpp). The optimizer's state is loaded if it has the same kinds; otherwise it starts from zero, at step 0, with a
/// note.
/// @throws CheckpointError  for another model, naming the first parameter that differs and both shapes;
///         DamagedCheckpointError naming file, dataset and byte range, and the next good checkpoint. The same on all
///         ranks. The target's values are undefined then.
/// @param manifest  from open_checkpoint(), on every rank. @collective over `comm`: all ranks of the mesh. Between passes;
/// waits for the compute stream.
LoadReport load(const std::string& checkpoint_folder, const Manifest& manifest, const LoadTarget& target, const HostComm& comm);

}  // namespace mica::checkpoint
