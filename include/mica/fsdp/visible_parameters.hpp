// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/fsdp/root.hpp"

namespace mica::fsdp {

/// A parameter as the C++ API shows it now (docs/parity.md C3).
struct VisibleParameter {
  std::string name;
  const nn::Parameter* parameter;  ///< null for a flat parameter
  ConstTensorView data;            ///< sharded: [n] of the master, n = 0 where this rank holds nothing; unsharded: [shape], param_dtype
  ConstTensorView grad;            ///< absent without a gradient; unsharded inside no_sync, else like the sharded data
  bool requires_grad;
};

/// Parameters of all units in module order, without ignored ones.
/// Original-parameter mode (RootOptions::use_orig_params): one under each full name. The sharded piece is always 1-D and may be
/// empty. Parameters that are unsharded now (shard_grad_op between forward and backward) are shown whole, as are unsharded
/// gradients after a backward under no_sync (not those that ranks share: [Note: shared gradients]).
/// Otherwise: one flat parameter per unit, "<unit>.flat_param" ("flat_param" of the root unit), which is the rank's shard with
/// its padding. Optimizers and checkpoints do not use this: they walk Root::pieces() in either mode.
[[nodiscard]] std::vector<VisibleParameter> visible_parameters(const Root& root);

}  // namespace mica::fsdp
