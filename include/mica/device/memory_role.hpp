// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mica {

/// What memory is used for. One enum for allocation, accounting and the memory plan.
enum class MemoryRole : std::uint8_t {
  sharded_param,
  low_precision_shard,
  unsharded_param,
  module_buffer,
  unsharded_grad,
  sharded_grad,
  optimizer,
  activation,
  communication,
  snapshot,
  workspace,
};
inline constexpr std::size_t kNumMemoryRoles = 11;

[[nodiscard]] constexpr std::string_view memory_role_name(MemoryRole role) {
  constexpr std::array<std::string_view, kNumMemoryRoles> names{
      "sharded_param", "low_precision_shard", "unsharded_param", "module_buffer", "unsharded_grad", "sharded_grad",
      "optimizer",     "activation",          "communication",   "snapshot",      "workspace"};
  return names[static_cast<std::size_t>(role)];
}

}  // namespace mica
