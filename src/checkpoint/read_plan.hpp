// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mica/checkpoint/manifest.hpp"
#include "mica/comm/host_comm.hpp"
#include "mica/comm/mesh.hpp"

#include "shard_file.hpp"
#include "shared_read.hpp"

namespace mica::checkpoint {

/// Rank 0 reads the manifest; the others get it without files and index. @throws CheckpointError. @collective
[[nodiscard]] Manifest share_manifest(const std::string& folder, const HostComm& comm);

struct ReadRequest {
  const std::string& folder;
  const Manifest& manifest;  ///< complete on rank 0; units on all ranks
  const HostComm& comm;
  const std::vector<SavedUnit>& units;  ///< of the model
  const Mesh& mesh;                     ///< of the model
  const std::vector<int>& mesh_ranks;   ///< of the ranks of `comm`
  bool is_of_this_mesh;                 ///< the checkpoint has the same units, cut the same way
};

/// What this rank reads, and where the elements go. Only rank 0 has all entries of the manifest and all rows of the tables of
/// pieces, and checks that they list every element once; other ranks get those of the files that they read. Each table is read by
/// one rank.
struct ReadPlan {
  std::vector<FilePart> parts;
  decltype(SharedRead::for_each_destination) for_each_destination;
  std::set<std::pair<std::string, std::string>> has_of;  ///< (parameter, kind) pairs in the checkpoint

  [[nodiscard]] bool has(const std::string& parameter, const std::string& kind) const { return has_of.contains({parameter, kind}); }
};

/// @param request  what it refers to outlives the plan. @throws DamagedCheckpointError. @collective
[[nodiscard]] ReadPlan make_read_plan(const ReadRequest& request);

}  // namespace mica::checkpoint
