// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/replica_drift.hpp"

#include <algorithm>
#include <iterator>
#include <map>

#include <fmt/ranges.h>

#include "mica/core/error.hpp"
#include "mica/tensor/fetch.hpp"
#include "mica/tensor/tensor.hpp"

namespace mica::fsdp {
namespace {

/// "rank 1", "ranks 0, 2"
std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

/// Compares the hashes of all ranks that hold one shard of one unit. @param hash_of  called with a mesh rank
template <class HashOf>
void compare(const Mesh& mesh, const std::string& unit, int shard_rank, int shard_size, const HashOf& hash_of) {
  std::map<std::uint64_t, std::vector<int>> holders;
  for (int rank = shard_rank; rank < mesh.world_size(); rank += shard_size) holders[hash_of(rank)].push_back(mesh.world_rank_of(rank));
  if (holders.size() == 1) return;
  std::string seen;
  for (const auto& [hash, ranks] : holders) {
    seen += fmt::format("{}{:016x} on {}", seen.empty() ? "" : "; ", hash, ranks_text(ranks));
  }
  throw DesyncError(
      fmt::format("replicas of unit {}, shard {} of {}, have drifted apart; hashes of their parameters: {}. One of these ranks computed "
                  "or stored something wrong (memory, processor, another build): resume from a checkpoint without its node",
                  unit, shard_rank, shard_size, seen));
}

}  // namespace

bool has_replicas(const Root& root) {
  const int world_size = root.device_mesh().mesh().world_size();
  return std::ranges::any_of(root.units(), [&](const Unit* unit) { return unit->storage() && unit->storage()->shard_size() < world_size; });
}

void check_replicas(Root& root) {
  require(root.state() == TrainingState::idle, "check_replicas is called while the root is {}: call it between passes",
          training_state_name(root.state()));
  if (!has_replicas(root)) return;
  const DeviceMesh& device_mesh = root.device_mesh();
  const Mesh& mesh = device_mesh.mesh();
  std::vector<const Unit*> units;
  std::ranges::copy_if(root.units(), std::back_inserter(units), [](const Unit* unit) { return unit->storage() != nullptr; });

  const auto num_units = static_cast<std::int64_t>(units.size());
  Stream& compute = device_mesh.compute();
  const Tensor hashes{device_mesh.pool().allocate(mesh.world_size() * num_units * dtype_bytes(DType::i64), MemoryRole::workspace, compute),
                      Shape{mesh.world_size(), num_units}, DType::i64};
  const TensorView mine = hashes.view().slice(mesh.rank() * num_units, num_units);
  for (std::int64_t i = 0; i < num_units; ++i) {
    device_mesh.kernels().fingerprint(compute, units[static_cast<std::size_t>(i)]->storage()->master(), mine.slice(i, 1));
  }
  device_mesh.metrics_group().all_gather(compute, "replica hashes", mine, hashes);
  const std::vector<std::int64_t> all = fetch<std::int64_t>(device_mesh.kernels(), compute, hashes);

  for (std::size_t i = 0; i < units.size(); ++i) {
    const int shard_size = units[i]->storage()->shard_size();
    for (int shard_rank = 0; shard_rank < shard_size; ++shard_rank) {
      compare(mesh, units[i]->name(), shard_rank, shard_size,
              [&](int rank) { return static_cast<std::uint64_t>(all[static_cast<std::size_t>(rank) * units.size() + i]); });
    }
  }
}

}  // namespace mica::fsdp
