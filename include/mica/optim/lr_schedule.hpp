// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace mica::optim {

enum class LrShape : std::uint8_t { cosine, linear, constant };
[[nodiscard]] std::string_view lr_shape_name(LrShape shape);
/// @throws ConfigError listing the names.
[[nodiscard]] LrShape lr_shape_from_name(std::string_view name);

struct LrScheduleOptions {
  LrShape shape = LrShape::cosine;
  double lr = 0;      ///< the highest
  double min_lr = 0;  ///< where cosine and linear end
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 1;  ///< of the run
};

/// The learning rate of each step; a pure function of the step, so there is nothing to save.
/// With W = warmup_steps, T = total_steps, steps t counted from 1:
///   t <= W: lr * t / W
///   t >  W: x = min(1, (t - W) / (T - W)), and
///     cosine    min_lr + (lr - min_lr) * (1 + cos(pi * x)) / 2
///     linear    lr + (min_lr - lr) * x
///     constant  lr
/// so step W has lr, and step T and later ones have min_lr. A run may end within the warm-up.
/// Example: cosine, lr 1, min_lr 0.2, W 2, T 6: 0.5, 1, 0.8828, 0.6, 0.3172, 0.2.
class LrSchedule {
 public:
  /// @throws ConfigError naming the option.
  explicit LrSchedule(const LrScheduleOptions& options);
  /// @param step  counts from 1.
  [[nodiscard]] double at(std::int64_t step) const;

 private:
  LrScheduleOptions options_;
};

}  // namespace mica::optim
