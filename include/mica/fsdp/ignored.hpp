// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unordered_set>

#include "mica/fsdp/options.hpp"
#include "mica/nn/module.hpp"

namespace mica::fsdp {

/// What a unit's options ignore. [Note: ignored parameters]
/// An ignored parameter stays whole on every rank: no unit moves, casts, initialises, broadcasts or reduces it. Its user owns
/// its storage and sets Parameter::data before the first forward (and Parameter::grad, unless it is frozen; gradients then
/// differ between ranks, and the user has to reduce them). Clipping, loss scaling and optimizers still see it, and assume it is
/// the same on every rank.
/// Ignoring a module means ignoring the parameters it uses (shared ones too) and its buffers (ModuleBuffer::data), and those of
/// the modules below it, except inside a unit below it. Enclosing units do not hold what an inner unit ignores.
struct IgnoredSet {
  std::unordered_set<const nn::Module*> modules;  ///< with those below them, units excepted
  std::unordered_set<const nn::Parameter*> parameters;

  IgnoredSet() = default;
  explicit IgnoredSet(const Options& options);
};

}  // namespace mica::fsdp
