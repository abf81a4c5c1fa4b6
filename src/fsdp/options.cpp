// SPDX-License-Identifier: Apache-2.0
#include "mica/fsdp/options.hpp"

#include <array>
#include <utility>

#include "mica/core/error.hpp"

namespace mica::fsdp {
namespace {
constexpr std::array<std::pair<Strategy, std::string_view>, 6> kStrategies{{{Strategy::full_shard, "full_shard"},
                                                                            {Strategy::shard_grad_op, "shard_grad_op"},
                                                                            {Strategy::no_shard, "no_shard"},
                                                                            {Strategy::hybrid_shard, "hybrid_shard"},
                                                                            {Strategy::hybrid_shard_zero2, "hybrid_shard_zero2"},
                                                                            {Strategy::shard_optim, "shard_optim"}}};
}

std::string_view strategy_name(Strategy strategy) {
  for (const auto& [value, name] : kStrategies) {
    if (value == strategy) return name;
  }
  return "?";
}

Strategy strategy_from_name(std::string_view name) {
  for (const auto& [value, known] : kStrategies) {
    if (known == name) return value;
  }
  throw ConfigError(fmt::format(
      "fsdp.strategy is '{}', expected full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2 or shard_optim", name));
}

DivisionFactors division_factors(int world_size) {
  int factor = 1;
  while (world_size % factor == 0 && static_cast<double>(world_size) / factor > factor) factor *= 2;
  return {static_cast<double>(factor), static_cast<double>(world_size) / factor};
}

}  // namespace mica::fsdp
