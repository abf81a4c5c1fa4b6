// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mica/fsdp/fully_shard.hpp"

namespace mica::fsdp {

/// A policy is called twice for a module: on the way down, whether to look inside it; on the way up, whether to make it a unit.
struct WrapQuestion {
  enum class Kind : std::uint8_t { descend, wrap } kind;
  const nn::Module& module;
  /// Elements of the subtree's parameters that are neither in a unit yet nor ignored.
  std::int64_t unwrapped_numel;
  /// The options that the unit would get; a policy may answer with a changed copy.
  const Options& options;

  [[nodiscard]] bool descends() const { return kind == Kind::descend; }
};

/// Yes, no, or yes with other options.
struct WrapAnswer {
  bool yes;
  std::optional<Options> options;
  WrapAnswer(bool answer) : yes(answer) {}
  WrapAnswer(Options own) : yes(true), options(std::move(own)) {}
};

/// Decides which modules become units (docs/parity.md B1).
using WrapPolicy = std::function<WrapAnswer(const WrapQuestion&)>;

/// Modules of these types, e.g. {"gpt2_block"}.
[[nodiscard]] WrapPolicy wrap_types(std::vector<std::string> type_names);
/// Modules with at least this many unwrapped elements; containers without a forward of their own are skipped.
[[nodiscard]] WrapPolicy wrap_min_numel(std::int64_t min_numel = 100'000'000);
/// Every module with parameters and a forward of its own.
[[nodiscard]] WrapPolicy wrap_always();
/// Only the root.
[[nodiscard]] WrapPolicy wrap_nothing();

/// Applies the policy bottom-up and makes `module` the root unit, which holds the remaining parameters. Units inherit `options`.
/// Existing units and ignored modules are skipped, with everything inside them.
/// Example: embeddings replicated, blocks sharded:
///   auto_wrap(model, device_mesh, options, [](const WrapQuestion& q) -> WrapAnswer {
///     if (q.descends() || q.module.type_name() == "gpt2_block") return true;
///     if (q.module.type_name() != "embedding") return false;
///     Options own = q.options;
///     own.strategy = Strategy::no_shard;
///     return own;
///   });
/// @throws ConfigError as fully_shard() does; `module` must not be a unit already.
Root& auto_wrap(nn::Module& module, DeviceMesh& device_mesh, const Options& options, const WrapPolicy& policy);

}  // namespace mica::fsdp
