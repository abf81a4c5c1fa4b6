// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mica/core/dtype.hpp"

namespace mica::nn {
class Module;
struct Parameter;
}  // namespace mica::nn

namespace mica::fsdp {

class GradientReduction;

/// What is sharded, and when parameters are resharded (docs/parity.md A1).
enum class Strategy : std::uint8_t {
  full_shard,          ///< parameters, gradients, optimizer; resharded after forward
  shard_grad_op,       ///< parameters stay unsharded between forward and backward
  no_shard,            ///< replicated; gradients all-reduced
  hybrid_shard,        ///< full_shard on the shard axis, all-reduce on the replicate axis
  hybrid_shard_zero2,  ///< shard_grad_op likewise
  shard_optim,         ///< only the optimizer (ZeRO-1): parameters stay unsharded until the optimizer writes masters
};
[[nodiscard]] std::string_view strategy_name(Strategy strategy);
/// @throws ConfigError listing the names.
[[nodiscard]] Strategy strategy_from_name(std::string_view name);
[[nodiscard]] constexpr bool is_hybrid(Strategy s) { return s == Strategy::hybrid_shard || s == Strategy::hybrid_shard_zero2; }
/// Whether the strategy reshards parameters after forward.
[[nodiscard]] constexpr bool reshards_after_forward(Strategy s) { return s == Strategy::full_shard || s == Strategy::hybrid_shard; }

/// Whether parameters that a strategy keeps after forward also stay after a synchronising backward.
[[nodiscard]] constexpr bool reshards_after_backward(Strategy s) { return s != Strategy::shard_optim; }

/// How a unit's parameters are cut (docs/parity.md C1, C4).
enum class Sharding : std::uint8_t {
  flat,           ///< concatenated, then cut into equal ranges
  per_parameter,  ///< each along one of its dims, as PyTorch's FSDP2 does
};

/// Which arrays are in the offload tier: host memory if units compute on a GPU, a separate pool on a CPU (docs/parity.md D9).
enum class CpuOffload : std::uint8_t {
  none,
  gradients,   ///< sharded gradients
  parameters,  ///< masters, sharded gradients and optimizer state
};

/// When the next unit of a backward is gathered (docs/parity.md D2).
enum class BackwardPrefetch : std::uint8_t {
  pre,   ///< before the current unit's backward: most overlap, one more unit in memory
  post,  ///< after the current unit's backward, before its reduction
  none,
};

/// Unset = no cast. reduce_dtype unset: param_dtype if that is set, else fp32.
struct MixedPrecision {
  std::optional<DType> param_dtype;
  std::optional<DType> reduce_dtype;
  std::optional<DType> buffer_dtype;  ///< of floating-point module buffers, from the first forward on
  /// Floating-point outputs of the unit are cast to it, and their gradients back.
  std::optional<DType> output_dtype{};
  /// Also casts floating-point inputs of inner units with parameters to param_dtype (the root's always are), and their
  /// gradients back: for units whose dtypes differ from their neighbours'.
  bool cast_forward_inputs = false;
  /// The sharded gradient keeps reduce_dtype instead of being widened to fp32: less memory from backward to zero_grad(), and
  /// micro-batches add up in that dtype. Optimizers convert it piece by piece as they step.
  bool keep_low_precision_grads = false;
};

/// Parameters whose full name matches the pattern (a glob: "*.mlp.*.weight") are cut along `dim`, which counts from the end if
/// negative and must divide evenly unless it is 0.
struct ShardDim {
  std::string pattern;
  int dim = 0;
};

/// Options with one value for all units of a root.
struct RootOptions {
  bool limit_all_gathers = true;
  /// Evaluation (Context::training off) gathers, computes and reduces in fp32 whatever param_dtype and reduce_dtype are
  /// (docs/parity.md D6).
  bool full_precision_in_eval = false;
  /// Original-parameter mode (docs/parity.md C3): the C++ API shows every parameter under its name instead of one flat
  /// parameter per unit, and a unit may mix frozen and trainable parameters.
  bool use_orig_params = false;
  /// Reduced gradients have the same bits on any number of ranks: deterministic.hpp.
  bool deterministic = false;
};

/// Options of one unit.
struct Options {
  Strategy strategy = Strategy::full_shard;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = false;
  MixedPrecision mixed_precision;
  Sharding sharding = Sharding::flat;
  /// per_parameter: dims along which parameters are cut; the first matching pattern decides, the default is dim 0.
  std::vector<ShardDim> shard_dims;
  /// Above 0: after forward, parameters are resharded over groups of this many neighbouring shard ranks only, so that the
  /// all-gather in backward stays within the group (docs/parity.md A6). Only for full_shard and hybrid_shard, the strategies
  /// that reshard after forward; refused for others. The root unit keeps its parameters for backward in any case.
  int reshard_after_forward_ranks = 0;
  CpuOffload cpu_offload = CpuOffload::none;
  /// How gradients are reduced (communication hooks, docs/parity.md D12); null: as the root's options say. Outlives the units.
  GradientReduction* reduction = nullptr;
  /// Set by auto_wrap(): parameters shared with other modules may move to an outer unit.
  bool wrapped_by_policy = false;
  /// initialize() broadcasts rank 0's parameters and buffers at its end (docs/parity.md C6).
  bool sync_module_states = false;
  /// Not sharded; their user owns their storage (docs/parity.md B3, [Note: ignored parameters]). Give modules (their subtrees,
  /// except units inside) or parameters, not both.
  std::vector<nn::Module*> ignored_modules;
  std::vector<nn::Parameter*> ignored_parameters;
  /// The root's options. Units inside leave them out, or must give the same.
  std::optional<RootOptions> root{};

  [[nodiscard]] DType param_dtype() const { return mixed_precision.param_dtype.value_or(DType::f32); }
  [[nodiscard]] DType reduce_dtype() const { return mixed_precision.reduce_dtype.value_or(param_dtype()); }
  /// Dtype of the sharded gradient.
  [[nodiscard]] DType grad_dtype() const { return mixed_precision.keep_low_precision_grads ? reduce_dtype() : DType::f32; }
  /// Whether a unit of several shards uses masters that ranks share as they are: [Note: shared masters] in unit_storage.hpp.
  [[nodiscard]] bool can_share_masters() const {
    return param_dtype() == DType::f32 && sharding == Sharding::flat && cpu_offload != CpuOffload::parameters &&
           reshard_after_forward_ranks == 0;
  }
  /// Whether such a unit's gradients may be written in turns: [Note: shared gradients]. @param replicas  of the mesh
  [[nodiscard]] bool can_share_grads(int replicas) const {
    return sharding == Sharding::flat && cpu_offload == CpuOffload::none && !reduction && !mixed_precision.keep_low_precision_grads &&
           (reduce_dtype() == DType::f32 || replicas == 1);
  }
  /// The same of casts of them, in a unit that keeps its parameters for backward: [Note: shared casts].
  [[nodiscard]] bool can_share_casts() const {
    return param_dtype() != DType::f32 && sharding == Sharding::flat && cpu_offload != CpuOffload::parameters;
  }
};

/// How the division by the world size is split before and after the reduction, to keep fp16 in range (docs/parity.md A5). 1:
/// 1/1, 2: 2/1, 3: 2/1.5, 4: 2/2, 6: 4/1.5, 8: 4/2, 128: 16/8.
struct DivisionFactors {
  double pre = 1;
  double post = 1;
};
[[nodiscard]] DivisionFactors division_factors(int world_size);

/// Parameters begin at multiples of this many elements in their unit's unsharded array, whatever the dtype.
inline constexpr std::int64_t kUnitAlignmentNumel = 64;

}  // namespace mica::fsdp
