// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mica/fsdp/root.hpp"

namespace mica::plan {

/// What the planner needs to know about one unit. P = shard_numel, S = shard_size.
struct UnitSpec {
  std::string name;
  std::int64_t shard_numel = 0;  ///< elements one rank holds, padding included; 0 for a unit without parameters
  int shard_size = 1;            ///< the unit's own: 1 for no_shard on any mesh
  bool is_trainable = true;
  fsdp::Strategy strategy = fsdp::Strategy::full_shard;
  DType param_dtype = DType::f32;
  DType reduce_dtype = DType::f32;
  DType grad_dtype = DType::f32;  ///< of the sharded gradient
  /// Per-parameter layouts: elements of the unsharded array; 0 if the gathered array is used as it is.
  std::int64_t rearranged_numel = 0;
  fsdp::CpuOffload cpu_offload = fsdp::CpuOffload::none;
  fsdp::BackwardPrefetch backward_prefetch = fsdp::BackwardPrefetch::pre;  ///< Unit::backward_prefetch()
  bool forward_prefetch = false;
  /// Indices in module order of the units to prefetch in this unit's forward and backward; empty: the next unit.
  std::vector<std::size_t> forward_prefetch_list = {}, backward_prefetch_list = {};
  bool reshards_after_backward = true;                        ///< Unit::set_reshard_after_backward()
  int num_neighbours = 0;                                     ///< sharded over this many neighbouring ranks after forward; 0: no
  bool keeps_unsharded_grads = false;                         ///< UnitStorage::keeps_unsharded_grads()
  bool shares_masters = false;                                ///< UnitStorage::shares_masters()
  bool is_deterministic = false;                              ///< RootOptions::deterministic
  std::optional<DType> wire_dtype = {};                       ///< of compressed gradients
  std::optional<fsdp::HookedGatherSizes> hooked_gather = {};  ///< when parameters have all-gather hooks

  [[nodiscard]] std::int64_t gathered_numel() const { return shard_numel * shard_size; }
  [[nodiscard]] std::int64_t unsharded_numel() const { return rearranged_numel > 0 ? rearranged_numel : gathered_numel(); }
  /// Whether the unsharded parameters are the masters themselves, this rank's alone or shared ones, so that they need no storage and no
  /// communication.
  [[nodiscard]] bool uses_master() const { return shares_masters || (shard_size == 1 && param_dtype == DType::f32 && !offloads_masters()); }
  [[nodiscard]] bool offloads_masters() const { return cpu_offload == fsdp::CpuOffload::parameters; }
  [[nodiscard]] std::int64_t sharded_grad_bytes() const { return shard_numel * dtype_bytes(grad_dtype); }
  [[nodiscard]] bool offloads_grads() const { return cpu_offload != fsdp::CpuOffload::none; }
};

/// The units of a root, in module order, the root unit first. They need no storage.
/// @throws ConfigError naming a parameter whose all-gather hooks do not give their sizes, a unit on another mesh than the root's, or a unit
/// with an output_dtype, whose casts a plan does not count.
[[nodiscard]] std::vector<UnitSpec> units_of(const fsdp::Root& root);

}  // namespace mica::plan
