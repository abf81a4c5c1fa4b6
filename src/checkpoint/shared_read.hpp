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

// [Note: shared reading] A checkpoint's blocks can only be checked as a whole, and a rank of another mesh needs a
// little of many. So every block that somebody needs is read and checked by one rank, in the order of its file, and its
// elements go from there to the ranks that hold them: all ranks together read what the checkpoint holds, once. Of a
// checkpoint of this very mesh a rank reads its own file, straight into place; replicas each read a part of it.

/// What one rank reads of a file: blocks [first, last), counted through the file's datasets.
struct FilePart {
  FileEntry file;
  std::vector<PackedRow> rows;  ///< its table of pieces; unused where the checkpoint is of this mesh
  std::int64_t first = 0, last = 0;
};
/// The blocks of all of a file's datasets.
[[nodiscard]] std::int64_t num_blocks(const FileEntry& file);

/// Elements [run.begin, run.end) of a dataset belong at run.offset of one kind of one of the model's units, on these ranks.
struct Destination {
  fsdp::Run run;
  std::size_t unit;
  const std::vector<int>* ranks;  ///< of the HostComm
};

/// One kind of one unit's shard, to be read. Same list on all ranks.
struct Sink {
  std::size_t unit;
  std::string kind;
  TensorView to;  ///< of the host or the pool's device
};

struct SharedRead {
  const std::string& folder;
  const HostComm& comm;
  const Pool& pool;
  const std::vector<FilePart>& parts;             ///< of this rank
  std::function<std::vector<Sink>()> make_sinks;  ///< may fail on one rank alone
  /// Calls visit for elements [begin, end) of a part's dataset, in order.
  std::function<void(const FilePart& part, const DatasetEntry& dataset, std::int64_t begin, std::int64_t end,
                     const std::function<void(const Destination&)>& visit)>
      for_each_destination;
};

/// Reads, checks and sends; converts where a sink's type is another. @returns bytes read by this rank.
/// @throws DamagedCheckpointError, the same on all ranks. @collective
std::int64_t read_together(const SharedRead& read);

}  // namespace mica::checkpoint
