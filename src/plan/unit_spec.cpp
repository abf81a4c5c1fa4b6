// SPDX-License-Identifier: Apache-2.0
#include "mica/plan/unit_spec.hpp"

#include <utility>

#include "mica/core/error.hpp"
#include "mica/fsdp/gradient_reduction.hpp"
#include "mica/fsdp/unit_tree.hpp"

namespace mica::plan {

std::vector<UnitSpec> units_of(const fsdp::Root& root) {
  fsdp::require_one_mesh(root, "a memory plan");
  const auto numbers_of = [](const std::vector<fsdp::Unit*>& listed) {
    std::vector<std::size_t> numbers;
    for (const fsdp::Unit* unit : listed) numbers.push_back(unit->index());
    return numbers;
  };
  std::vector<UnitSpec> specs;
  for (const fsdp::Unit* unit : root.units()) {
    UnitSpec spec{.name = unit->name(),
                  .strategy = unit->options().strategy,
                  .param_dtype = unit->options().param_dtype(),
                  .reduce_dtype = unit->options().reduce_dtype(),
                  .grad_dtype = unit->options().grad_dtype(),
                  .backward_prefetch = unit->backward_prefetch(),
                  .forward_prefetch = unit->options().forward_prefetch,
                  .forward_prefetch_list = numbers_of(unit->forward_prefetch_list()),
                  .backward_prefetch_list = numbers_of(unit->backward_prefetch_list()),
                  .reshards_after_backward = unit->reshard_after_backward()};
    require<ConfigError>(!unit->options().mixed_precision.output_dtype,
                         "unit {} casts its outputs to {} (output_dtype), which a memory plan does not count: plan without it",
                         unit->name(), dtype_name(*unit->options().mixed_precision.output_dtype));
    spec.is_deterministic = root.options().deterministic;
    if (const fsdp::GradientReduction* reduction = unit->options().reduction) spec.wire_dtype = reduction->wire_dtype();
    if (const fsdp::UnitStorage* storage = unit->storage()) {
      spec.shard_numel = storage->layout().shard_numel();
      spec.shard_size = storage->shard_size();
      spec.is_trainable = storage->is_trainable();
      spec.keeps_unsharded_grads = storage->keeps_unsharded_grads();
      spec.shares_masters = storage->shares_masters();
      if (!storage->layout().rearrangement().empty()) spec.rearranged_numel = storage->layout().unsharded_numel();
      spec.cpu_offload = unit->options().cpu_offload;
      spec.hooked_gather = storage->hooked_gather_sizes();
      if (spec.shard_size > 1) spec.num_neighbours = unit->options().reshard_after_forward_ranks;
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace mica::plan
