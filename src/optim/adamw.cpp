// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "mica/core/error.hpp"
#include "mica/optim/optimizer.hpp"

namespace mica::optim {
namespace {

void check_options(const AdamWOptions& options) {
  const auto is_beta = [](double beta) { return beta >= 0 && beta < 1; };
  require<ConfigError>(is_beta(options.beta1), "optim.beta1 is {}, expected 0 <= beta1 < 1", options.beta1);
  require<ConfigError>(is_beta(options.beta2), "optim.beta2 is {}, expected 0 <= beta2 < 1", options.beta2);
  // Without it an element whose gradients were all zero so far becomes 0/0.
  require<ConfigError>(static_cast<float>(options.eps) > 0 && options.eps < 1,
                       "optim.eps is {}, expected more than 0 (in fp32) and less than 1", options.eps);
  require<ConfigError>(options.precision != MomentPrecision::int8 || options.eps >= 0x1p-27,
                       "optim.eps is {}, but optim.state_dtype = int8 needs at least 7.5e-9, the smallest number that it keeps",
                       options.eps);
  require<ConfigError>(options.weight_decay >= 0 && options.weight_decay < 1e6, "optim.weight_decay is {}, expected a number >= 0",
                       options.weight_decay);
}

/// AdamW, and Adam where the decay is part of the gradient. State: exp_avg, exp_avg_sq.
class AdamW final : public Optimizer {
 public:
  AdamW(fsdp::Root& root, const AdamWOptions& options, std::vector<ParamGroup> groups)
      : Optimizer(root, options.weight_decay, std::move(groups), options.precision), options_(options) {
    for (const ParamGroup& group : this->groups()) {
      needs_workspace_ = needs_workspace_ || group.weight_decay.value_or(options.weight_decay) != 0;
    }
    needs_workspace_ = needs_workspace_ && !options.decoupled;
  }

  [[nodiscard]] std::vector<std::string> state_kinds() const override { return {"exp_avg", "exp_avg_sq"}; }
  [[nodiscard]] bool counts_steps() const override { return true; }
  [[nodiscard]] std::map<std::string, double> group_options(const ParamGroup& group) const override {
    return {{"lr_factor", group.lr_factor},
            {"weight_decay", group.weight_decay.value_or(options_.weight_decay)},
            {"beta1", group.beta1.value_or(options_.beta1)},
            {"beta2", group.beta2.value_or(options_.beta2)},
            {"eps", options_.eps}};
  }
  [[nodiscard]] std::string_view name() const override { return options_.decoupled ? "adamw" : "adam"; }

 protected:
  void step_runs(std::span<const RunArgs> runs, const StepArgs& args) override {
    std::vector<AdamWArgs> kernel_args;
    for (const RunArgs& run : runs) {
      const AdamWArgs kernel{.param = run.param,
                             .grad = run.grad,
                             .exp_avg = run.state[0],
                             .exp_avg_sq = run.state[1],
                             .lr = run.lr,
                             .beta1 = run.group->beta1.value_or(options_.beta1),
                             .beta2 = run.group->beta2.value_or(options_.beta2),
                             .eps = options_.eps,
                             .weight_decay = run.weight_decay,
                             .step = run.step,
                             .grad_scale = args.grad_scale,
                             .skip = args.skip,
                             .skipped_steps = args.skipped_steps};
      if (options_.decoupled || run.weight_decay == 0) {
        kernel_args.push_back(kernel);
      } else {
        step_with_l2(kernel, run);
      }
    }
    if (!kernel_args.empty()) runs[0].kernels->adamw(*runs[0].stream, kernel_args);
  }

  [[nodiscard]] std::int64_t run_workspace_numel() const override { return needs_workspace_ ? kChunkNumel : 0; }

 private:
  /// The kernel knows decoupled decay only, so the decayed gradient is made in workspace, a chunk at a time.
  static void step_with_l2(const AdamWArgs& whole, const RunArgs& run) {
    Kernels& kernels = *run.kernels;
    Stream& stream = *run.stream;
    for (std::int64_t begin = 0; begin < whole.param.numel(); begin += kChunkNumel) {
      const std::int64_t numel = std::min(kChunkNumel, whole.param.numel() - begin);
      const TensorView decayed = run.workspace.slice(0, numel);
      AdamWArgs part = whole;
      part.param = whole.param.slice(begin, numel);
      part.exp_avg = whole.exp_avg.slice(begin, numel);
      part.exp_avg_sq = whole.exp_avg_sq.slice(begin, numel);
      part.grad = decayed;
      part.grad_scale = {};
      part.weight_decay = 0;
      kernels.copy(stream, whole.grad.slice(begin, numel), decayed);
      if (whole.grad_scale) kernels.scale_by(stream, decayed, whole.grad_scale);
      kernels.scale(stream, part.param, whole.weight_decay, decayed, Write::accumulate);
      kernels.adamw(stream, part);
    }
  }

  static constexpr std::int64_t kChunkNumel = 1 << 16;
  AdamWOptions options_;
  bool needs_workspace_ = false;
};

}  // namespace

std::unique_ptr<Optimizer> make_adamw(fsdp::Root& root, const AdamWOptions& options, std::vector<ParamGroup> groups) {
  check_options(options);
  return std::make_unique<AdamW>(root, options, std::move(groups));
}

}  // namespace mica::optim
