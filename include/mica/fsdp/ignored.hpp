#pragma once

#include <unordered_set>

#include "mica/fsdp/options.hpp"
#include "mica/nn/module.hpp"

namespace mica::fsdp {

/// What a unit's options leave alone. [Note: ignored parameters]
/// An ignored parameter stays whole on every rank: no unit moves, casts, initialises, broadcasts or reduces it. Its
/// storage is its user's, who sets Parameter::data before the first forward (and Parameter::grad, unless it is frozen:
/// gradients then differ between the ranks, and reducing them is the user's affair too). Clipping, loss scaling and
/// optimizers see it nevertheless, as the same on every rank.
/// Ignoring a module means the parameters it uses (shared ones too) and its buffers (ModuleBuffer::data), and those of
/// the modules below it, except what is inside a unit below it. What one unit ignores no unit around it takes.
struct IgnoredSet {
  std::unordered_set<const nn::Module*> modules;  ///< with those below them, units excepted
  std::unordered_set<const nn::Parameter*> parameters;

  IgnoredSet() = default;
  explicit IgnoredSet(const Options& options);
};

}  // namespace mica::fsdp
