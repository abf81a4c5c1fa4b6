// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mica::train {

/// What is wrong with a step, from mild to severe.
enum class BadStep : std::uint8_t { none, grad_norm_spike, grad_norm_not_finite, loss_not_finite };

/// Judges a step before it changes the model. A spike is a gradient norm above `spike_factor` times its running mean, which covers about
/// the last kMeanSteps good steps. There are no spikes before kFirstSteps good steps.
class BadStepJudge {
 public:
  static constexpr std::int64_t kFirstSteps = 10, kMeanSteps = 50;

  /// @param spike_factor  train.grad_norm_spike; 0: there are no spikes.
  explicit BadStepJudge(double spike_factor) : spike_factor_(spike_factor) {}

  /// @param losses  of this rank's micro-batches  @param grad_norm  of the whole model, before clipping
  [[nodiscard]] BadStep judge(const std::vector<float>& losses, double grad_norm) const;
  void count_good(double grad_norm);
  /// "the gradient norm is 12.5, 8.1 times its running mean 1.54"
  [[nodiscard]] std::string describe(BadStep bad, double grad_norm) const;

  /// The running mean, as a checkpoint keeps it.
  [[nodiscard]] std::map<std::string, double> scalars() const;
  void restore(const std::map<std::string, double>& scalars);

 private:
  double spike_factor_;
  double mean_ = 0;
  std::int64_t num_good_ = 0;
};

}  // namespace mica::train
