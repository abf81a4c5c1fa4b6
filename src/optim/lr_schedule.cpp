// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/lr_schedule.hpp"

#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "mica/core/error.hpp"

namespace mica::optim {
namespace {
constexpr std::array<std::pair<LrShape, std::string_view>, 3> kShapes{
    {{LrShape::cosine, "cosine"}, {LrShape::linear, "linear"}, {LrShape::constant, "constant"}}};
}

std::string_view lr_shape_name(LrShape shape) {
  for (const auto& [value, name] : kShapes) {
    if (value == shape) return name;
  }
  return "?";
}

LrShape lr_shape_from_name(std::string_view name) {
  for (const auto& [value, known] : kShapes) {
    if (known == name) return value;
  }
  throw ConfigError(fmt::format("optim.schedule is '{}', expected cosine, linear or constant", name));
}

LrSchedule::LrSchedule(const LrScheduleOptions& options) : options_(options) {
  require<ConfigError>(std::isfinite(options.lr) && options.lr >= 0, "optim.lr is {}, expected a number >= 0", options.lr);
  require<ConfigError>(options.min_lr >= 0 && options.min_lr <= options.lr, "optim.min_lr is {}, expected 0 <= min_lr <= lr, which is {}",
                       options.min_lr, options.lr);
  require<ConfigError>(options.warmup_steps >= 0, "optim.warmup_steps is {}, expected 0 or more", options.warmup_steps);
  require<ConfigError>(options.total_steps >= 1, "train.steps is {}, expected 1 or more", options.total_steps);
}

double LrSchedule::at(std::int64_t step) const {
  require(step >= 1, "the learning rate of step {} was requested, but steps count from 1", step);
  const LrScheduleOptions& o = options_;
  if (step <= o.warmup_steps) return o.lr * static_cast<double>(step) / static_cast<double>(o.warmup_steps);
  const std::int64_t decay_steps = o.total_steps - o.warmup_steps;
  const double x = step >= o.total_steps ? 1 : static_cast<double>(step - o.warmup_steps) / static_cast<double>(decay_steps);
  switch (o.shape) {
    case LrShape::cosine:
      return o.min_lr + (o.lr - o.min_lr) * (1 + std::cos(std::numbers::pi * x)) / 2;
    case LrShape::linear:
      return o.lr + (o.min_lr - o.lr) * x;
    case LrShape::constant:
      return o.lr;
  }
  return o.lr;
}

}  // namespace mica::optim
