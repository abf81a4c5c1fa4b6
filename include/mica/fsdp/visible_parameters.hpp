#pragma once

#include <string>
#include <vector>

#include "mica/fsdp/root.hpp"

namespace mica::fsdp {

/// A parameter as the C++ API shows it at this moment (docs/parity.md C3).
struct VisibleParameter {
  std::string name;
  const nn::Parameter* parameter;  ///< null for a flat parameter
  ConstTensorView data;  ///< sharded: [n] of the master, n = 0 where this rank holds nothing; unsharded: [shape], param_dtype
  ConstTensorView grad;  ///< absent without a gradient; unsharded inside no_sync, else like the sharded data
  bool requires_grad;
};

/// Parameters of all units in module order, ignored ones left out.
/// Original-parameter mode (RootOptions::use_orig_params): one under each full name. The sharded piece is always 1-D and may
/// be empty. What is unsharded now (shard_grad_op between forward and backward) is shown whole, and so are the unsharded
/// gradients that a backward under no_sync has left.
/// Otherwise: one flat parameter a unit, "<unit>.flat_param" ("flat_param" of the root unit), which is the rank's shard with its padding.
/// Optimizers and checkpoints do not look here: they walk Root::pieces() in either mode.
[[nodiscard]] std::vector<VisibleParameter> visible_parameters(const Root& root);

}  // namespace mica::fsdp
