#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mica/fsdp/root.hpp"

namespace mica::plan {

/// What the planner has to know of one unit. P = shard_numel, S = shard_size.
struct UnitSpec {
  std::string name;
  std::int64_t shard_numel = 0;  ///< elements one rank holds, padding included; 0 for a unit without parameters
  int shard_size = 1;            ///< of this unit: 1 for no_shard, whatever the mesh
  bool is_trainable = true;
  fsdp::Strategy strategy = fsdp::Strategy::full_shard;
  DType param_dtype = DType::f32;
  DType reduce_dtype = DType::f32;

  [[nodiscard]] std::int64_t unsharded_numel() const { return shard_numel * shard_size; }
  /// The unsharded parameters are the master itself: no storage, no traffic.
  [[nodiscard]] bool uses_master() const { return shard_size == 1 && param_dtype == DType::f32; }
};

/// The units of a root, in module order, the root unit first. They need no storage.
[[nodiscard]] std::vector<UnitSpec> units_of(const fsdp::Root& root);

}  // namespace mica::plan
