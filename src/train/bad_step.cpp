// SPDX-License-Identifier: Apache-2.0
#include "mica/train/bad_step.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace mica::train {
namespace {

constexpr const char* kMean = "grad_norm_mean";
constexpr const char* kNumGood = "grad_norm_steps";

}  // namespace

BadStep BadStepJudge::judge(const std::vector<float>& losses, double grad_norm) const {
  if (!std::ranges::all_of(losses, [](float loss) { return std::isfinite(loss); })) return BadStep::loss_not_finite;
  if (!std::isfinite(grad_norm)) return BadStep::grad_norm_not_finite;
  const bool is_spike = spike_factor_ > 0 && num_good_ >= kFirstSteps && grad_norm > spike_factor_ * mean_;
  return is_spike ? BadStep::grad_norm_spike : BadStep::none;
}

void BadStepJudge::count_good(double grad_norm) {
  ++num_good_;
  mean_ += (grad_norm - mean_) / static_cast<double>(std::min(num_good_, kMeanSteps));
}

std::string BadStepJudge::describe(BadStep bad, double grad_norm) const {
  if (bad == BadStep::loss_not_finite) return "the loss is NaN or infinite";
  if (bad == BadStep::grad_norm_not_finite) return "the gradient norm is NaN or infinite";
  return fmt::format("the gradient norm is {:.4g}, {:.3g} times its running mean {:.4g}", grad_norm, grad_norm / mean_, mean_);
}

std::map<std::string, double> BadStepJudge::scalars() const {
  if (spike_factor_ == 0) return {};
  return {{kMean, mean_}, {kNumGood, static_cast<double>(num_good_)}};
}

void BadStepJudge::restore(const std::map<std::string, double>& scalars) {
  const bool has_mean = scalars.contains(kMean) && scalars.contains(kNumGood);
  mean_ = has_mean ? scalars.at(kMean) : 0;
  num_good_ = has_mean ? static_cast<std::int64_t>(scalars.at(kNumGood)) : 0;
}

}  // namespace mica::train
