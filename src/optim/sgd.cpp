#include "mica/core/error.hpp"
#include "mica/optim/optimizer.hpp"

namespace mica::optim {
namespace {

void check_options(const SgdOptions& options) {
  require<ConfigError>(options.momentum >= 0 && options.momentum <= 1,
                       "optim.momentum is {}, expected 0 <= momentum <= 1", options.momentum);
  require<ConfigError>(options.dampening >= 0 && options.dampening <= 1,
                       "optim.dampening is {}, expected 0 <= dampening <= 1", options.dampening);
  require<ConfigError>(options.weight_decay >= 0 && options.weight_decay < 1e6,
                       "optim.weight_decay is {}, expected a number >= 0", options.weight_decay);
  require<ConfigError>(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
                       "optim.nesterov needs momentum > 0 and dampening 0, got momentum {} and dampening {}",
                       options.momentum, options.dampening);
}

/// SGD; state momentum_buffer if there is momentum.
class Sgd final : public Optimizer {
 public:
  Sgd(fsdp::Root& root, const SgdOptions& options) : Optimizer(root, options.weight_decay), options_(options) {}

  [[nodiscard]] std::vector<std::string> state_kinds() const override {
    return options_.momentum == 0 ? std::vector<std::string>{} : std::vector<std::string>{"momentum_buffer"};
  }
  [[nodiscard]] std::string_view name() const override { return "sgd"; }

 protected:
  void step_run(const Run& run, const StepArgs& args) override {
    const SgdArgs kernel{.param = run.param,
                         .grad = run.grad,
                         .momentum_buffer = run.state.empty() ? TensorView{} : run.state[0],
                         .lr = args.lr,
                         .momentum = options_.momentum,
                         .dampening = options_.dampening,
                         .weight_decay = run.weight_decay,
                         .nesterov = options_.nesterov,
                         .first_step = run.is_first,
                         .grad_scale = args.grad_scale,
                         .skip = args.skip};
    device_mesh().kernels().sgd(device_mesh().compute(), kernel);
  }

  /// Without dampening the first step needs no special case (the buffer starts at zero); with it, the host would have
  /// to know whether the first step was skipped.
  void check(const StepArgs& args) const override {
    require<ConfigError>(!args.skip || options_.momentum == 0 || options_.dampening == 0,
                         "steps that may be skipped do not go with optim.dampening {}: set it to 0",
                         options_.dampening);
  }

 private:
  SgdOptions options_;
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(fsdp::Root& root, const SgdOptions& options) {
  check_options(options);
  return std::make_unique<Sgd>(root, options);
}

}  // namespace mica::optim
