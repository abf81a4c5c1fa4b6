// SPDX-License-Identifier: Apache-2.0
#include "mica/core/error.hpp"
#include "mica/optim/optimizer.hpp"

namespace mica::optim {
namespace {

void check_options(const SgdOptions& options) {
  require<ConfigError>(options.momentum >= 0 && options.momentum <= 1, "optim.momentum is {}, expected 0 <= momentum <= 1",
                       options.momentum);
  require<ConfigError>(options.dampening >= 0 && options.dampening <= 1, "optim.dampening is {}, expected 0 <= dampening <= 1",
                       options.dampening);
  require<ConfigError>(options.weight_decay >= 0 && options.weight_decay < 1e6, "optim.weight_decay is {}, expected a number >= 0",
                       options.weight_decay);
  require<ConfigError>(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
                       "optim.nesterov needs momentum > 0 and dampening 0, got momentum {} and dampening {}", options.momentum,
                       options.dampening);
  require<ConfigError>(options.precision == MomentPrecision::fp32 || options.momentum > 0,
                       "optim.state_dtype is {}, but sgd without momentum keeps no state: set optim.momentum, or leave state_dtype out",
                       moment_precision_name(options.precision));
}

/// SGD; state momentum_buffer if there is momentum.
class Sgd final : public Optimizer {
 public:
  Sgd(fsdp::Root& root, const SgdOptions& options, std::vector<ParamGroup> groups)
      : Optimizer(root, options.weight_decay, std::move(groups), options.precision), options_(options) {
    for (const ParamGroup& group : this->groups()) {
      require<ConfigError>(!group.beta1 && !group.beta2, "a parameter group of sgd has betas, which only adamw and adam use");
    }
  }

  [[nodiscard]] std::vector<std::string> state_kinds() const override {
    return options_.momentum == 0 ? std::vector<std::string>{} : std::vector<std::string>{"momentum_buffer"};
  }
  [[nodiscard]] bool counts_steps() const override { return false; }
  [[nodiscard]] std::map<std::string, double> group_options(const ParamGroup& group) const override {
    return {{"lr_factor", group.lr_factor},
            {"weight_decay", group.weight_decay.value_or(options_.weight_decay)},
            {"momentum", options_.momentum},
            {"dampening", options_.dampening},
            {"nesterov", options_.nesterov ? 1.0 : 0.0}};
  }
  [[nodiscard]] std::string_view name() const override { return "sgd"; }

 protected:
  void step_runs(std::span<const RunArgs> runs, const StepArgs& args) override {
    std::vector<SgdArgs> kernel_args;
    for (const RunArgs& run : runs) {
      kernel_args.push_back({.param = run.param,
                             .grad = run.grad,
                             .momentum_buffer = run.state.empty() ? TensorView{} : run.state[0],
                             .lr = run.lr,
                             .momentum = options_.momentum,
                             .dampening = options_.dampening,
                             .weight_decay = run.weight_decay,
                             .nesterov = options_.nesterov,
                             .first_step = run.is_first,
                             .grad_scale = args.grad_scale,
                             .skip = args.skip});
    }
    runs[0].kernels->sgd(*runs[0].stream, kernel_args);
  }

  /// Without dampening the first step needs no special case (the buffer starts at zero); with it, the host would have
  /// to know whether the first step was skipped.
  void check(const StepArgs& args) const override {
    require<ConfigError>(!args.skip || options_.momentum == 0 || options_.dampening == 0,
                         "steps that may be skipped cannot be used with optim.dampening {}: set it to 0", options_.dampening);
  }

 private:
  SgdOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(fsdp::Root& root, const SgdOptions& options, std::vector<ParamGroup> groups) {
  check_options(options);
  return std::make_unique<Sgd>(root, options, std::move(groups));
}

}  // namespace mica::optim
