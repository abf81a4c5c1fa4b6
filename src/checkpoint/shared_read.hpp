// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"
#include "mica/comm/host_comm.hpp"
#include "mica/device/pool.hpp"
#include "mica/tensor/tensor_view.hpp"

#include "piece_table.hpp"

namespace mica::checkpoint {

// [Note: shared reading] A block can only be checked as a whole, and on another mesh a rank needs small parts of many blocks. So every
// block that any rank needs is read and checked by one rank, in file order, and that rank sends its elements to the ranks that hold
// them: together, the ranks read the checkpoint once. If the checkpoint has the same mesh, a rank reads its own file, directly into
// place, and each replica reads a part of it.

/// What one rank reads of a file: blocks [first, last), counted through the file's datasets.
struct FilePart {
  FileEntry file;
  std::vector<PackedRow> rows;  ///< its table of pieces; unused if the checkpoint has this mesh
  std::int64_t first = 0, last = 0;
};
/// The number of blocks of all datasets of a file.
[[nodiscard]] std::int64_t num_blocks(const FileEntry& file);

/// Elements [run.begin, run.end) of a dataset belong at run.offset of one kind of one of the model's units, on these ranks.
struct Destination {
  fsdp::Run run;
  std::size_t unit;
  const std::vector<int>* ranks;  ///< of the HostComm
};

/// The memory for one kind of one unit's shard. The list is the same on all ranks.
struct Sink {
  std::size_t unit;
  std::string kind;
  TensorView to;  ///< in host memory or on the pool's device
};

struct SharedRead {
  const std::string& folder;
  const HostComm& comm;
  const Pool& pool;
  const std::vector<FilePart>& parts;             ///< that this rank reads
  std::function<std::vector<Sink>()> make_sinks;  ///< may throw on a single rank
  /// Calls visit for elements [begin, end) of a part's dataset, in order.
  std::function<void(const FilePart& part, const DatasetEntry& dataset, std::int64_t begin, std::int64_t end,
                     const std::function<void(const Destination&)>& visit)>
      for_each_destination;
};

/// Reads, checks and sends; converts if a sink has another dtype. @returns bytes read by this rank.
/// @throws DamagedCheckpointError, the same on all ranks. @collective
std::int64_t read_together(const SharedRead& read);

}  // namespace mica::checkpoint
