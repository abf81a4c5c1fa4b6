// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "mica/fsdp/deterministic.hpp"
#include "mica/fsdp/state_dict.hpp"
#include "mica/optim/clip_grad_norm.hpp"
#include "mica/optim/grad_scaler.hpp"
#include "mica/optim/optimizer_in_backward.hpp"
#include "mica/optim/state_dict.hpp"

#include "support/random_case.hpp"
#include "testing/local_group.hpp"
#include "unit/fsdp/held_parameters.hpp"

// The differential test's run on several ranks.
namespace mica::testing {

inline constexpr int kReloadSeed = 77;

/// What one rank saw in one step.
struct RankStep {
  std::vector<Part> parts;      // with gradients before clipping
  std::vector<Values> outputs;  // by round
  std::optional<float> norm;    // of the gradient, when it is clipped
  bool is_skipped = false;      // by the scaler
};

/// x and dy of a micro-batch: any fixed function of its number.
inline Values numbers(std::int64_t numel, int step, int micro_batch, int salt) {
  Values values;
  for (std::int64_t i = 0; i < numel; ++i) {
    values.push_back(static_cast<float>(std::sin(0.7 * static_cast<double>(i) + 1.3 * micro_batch + 2.9 * step + salt)));
  }
  return values;
}

/// One rank's device without anything sharded.
struct Device {
  std::unique_ptr<Pool> pool = make_cpu_pool();
  std::unique_ptr<Kernels> kernels = make_reference_kernels(*pool);
  Device() { pool->poison(true); }
};

inline Tensor tensor_of(nn::Context& context, const Values& values, Shape shape, DType dtype) {
  Tensor tensor = context.make(shape, dtype);
  const Tensor wide = context.make(shape, DType::f32);
  context.compute.synchronize();
  std::ranges::copy(values, wide.view().as<float>());
  context.kernels.copy(context.compute, wide, tensor);
  return tensor;
}

inline nn::Tensors run_forward(const RandomCase& c, nn::Module& model, nn::Context& context, int step, int micro_batch, DType dtype,
                               nn::Record* record) {
  const Shape shape{c.rows, c.blocks.front().in};
  return model.forward(context, nn::list_of(tensor_of(context, numbers(shape.numel(), step, micro_batch, 0), shape, dtype)), record);
}

/// dy of a micro-batch, divided by the rounds of a step and multiplied with the loss scale.
inline Tensor output_gradient(const RandomCase& c, nn::Context& context, int step, int micro_batch, double scale = 1) {
  const Shape shape{c.rows, c.blocks.back().out};
  Values dy = numbers(shape.numel(), step, micro_batch, 1);
  for (float& value : dy) value = value / static_cast<float>(c.rounds.size()) * static_cast<float>(scale);
  return tensor_of(context, dy, shape, c.dtype_of_output());
}

inline std::vector<Part> parts_of(fsdp::Root& root, nn::Module& model, nn::Context& context, bool gradients) {
  std::vector<const nn::Parameter*> order;
  model.for_each_parameter([&](const std::string&, nn::Parameter& p) { order.push_back(&p); });
  std::vector<Part> parts;
  for (const fsdp::Piece& p : root.pieces()) {
    for (std::int64_t i = 0; i < p.num_runs(); ++i) {
      const fsdp::Run run = p.run(i);
      const auto place = std::ranges::find(order, root.parameter(p).parameter);
      Part part{static_cast<std::size_t>(place - order.begin()), run.begin, {}, {}};
      part.master = values_of(context, root.storage(p).master().slice(run.offset, run.numel()));
      part.has_gradient = gradients && root.storage(p).has_grad(p.parameter);
      if (part.has_gradient) part.gradient = values_of(context, root.storage(p).sharded_grad().slice(run.offset, run.numel()));
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

/// One rank of the case: model, optimizer and scaler, which a reload makes anew.
class ShardedRank {
 public:
  ShardedRank(const RandomCase& random_case, std::unique_ptr<ProcessGroup> world)
      : c_(random_case),
        rank_(world->rank()),
        other_mesh_(c_.other_shard_size > 0 ? std::make_unique<Mesh>(world->duplicate("other"), geometry(c_.other_shard_size)) : nullptr),
        mesh_(std::move(world), geometry(c_.shard_size)),
        device_mesh_(mesh_, *device_.pool, *device_.kernels, fsdp::Streams::make(c_.threaded ? StreamMode::threaded : StreamMode::inlined)),
        other_grid_(other_mesh_ ? std::make_unique<fsdp::DeviceMesh>(*other_mesh_, device_mesh_) : nullptr),
        context_{.compute = device_mesh_.compute(), .pool = *device_.pool, .kernels = *device_.kernels} {
    context_.recompute = c_.recompute;
    make_model(kSeed);
  }

  /// @returns what this rank saw in each step, and one more entry with the masters at the end.
  std::vector<RankStep> run() {
    IgnoredParameters ignored(c_, root(), *model_, context_);
    std::vector<RankStep> steps;
    for (int step = 0; step < c_.num_steps; ++step) {
      if (c_.reload && c_.reload->before_step == step) reload();
      model_->leave_out(c_.left_out_in(step));
      if (c_.evaluates) evaluate(ignored, step);
      RankStep& now = steps.emplace_back();
      switch (c_.stepping) {
        case RandomCase::Stepping::by_hand:
          step_by_hand(ignored, step, now);
          break;
        case RandomCase::Stepping::optimizer:
          step_optimizer(step, now);
          break;
        case RandomCase::Stepping::in_backward:
          step_in_backward(step, now);
          break;
      }
    }
    context_.compute.synchronize();
    steps.push_back({parts_of(root(), *model_, context_, false), {}, {}});
    ignored.add_masters(steps.back().parts);
    return steps;
  }

 private:
  [[nodiscard]] MeshGeometry geometry(int shard_size) const { return {c_.world_size, shard_size, c_.world_size / shard_size}; }
  fsdp::Root& root() { return fsdp::root_of(*model_); }

  void make_model(std::uint64_t seed) {
    model_ = c_.make_model();
    c_.shard(*model_, device_mesh_, other_grid_.get());
    root().initialize(seed);
    if (c_.stepping == RandomCase::Stepping::by_hand) return;
    optimizer_ = optim::make_sgd(root(), {.momentum = c_.momentum});
    if (c_.stepping == RandomCase::Stepping::in_backward) {
      in_backward_ = std::make_unique<optim::OptimizerInBackward>(*optimizer_);
    }
    if (c_.loss_scale > 0) scaler_ = std::make_unique<optim::GradScaler>(root(), optim::GradScalerOptions{.init_scale = c_.loss_scale});
  }

  /// Into a model of other initial values.
  void reload() {
    const RandomCase::Reload& how = *c_.reload;
    const bool is_full = how.kind == fsdp::StateDictKind::full;
    fsdp::StateDictSettings settings = fsdp::StateDictSettings::of(how.kind);
    if (is_full) {
      settings.model = fsdp::FullStateDictConfig{.offload_to_cpu = how.from_rank0, .rank0_only = how.from_rank0};
      settings.optim = fsdp::FullOptimStateDictConfig{.rank0_only = how.from_rank0};
    }
    fsdp::set_state_dict_settings(*model_, settings);
    const fsdp::StateDict parameters = fsdp::state_dict(*model_);
    if (scaler_) scaler_->take_skipped_steps_off(*optimizer_);
    const optim::OptimStateDict states = optim::optim_state_dict(*optimizer_);
    const auto scale = scaler_ ? std::optional(scaler_->state()) : std::nullopt;
    // What a local state dict shows goes with its model.
    const std::unique_ptr<RandomModel> old_model = std::move(model_);
    const std::unique_ptr<optim::Optimizer> old_optimizer = std::move(optimizer_);
    in_backward_.reset();
    scaler_.reset();
    make_model(kReloadSeed);
    fsdp::set_state_dict_settings(*model_, settings);
    fsdp::load_state_dict(*model_, parameters, {.from_rank0 = is_full && how.from_rank0});
    if (is_full && how.from_rank0) {
      optim::load_optim_state_dict(*optimizer_, optim::scatter_full_optim_state_dict(rank_ == 0 ? &states : nullptr, *optimizer_));
    } else if (how.kind == fsdp::StateDictKind::sharded) {
      optim::load_optim_state_dict(*optimizer_, optim::local_from_sharded_optim_state_dict(states, *optimizer_));
    } else {
      optim::load_optim_state_dict(*optimizer_, states);
    }
    if (scale) scaler_->set_state(*scale);
  }

  void evaluate(IgnoredParameters& ignored, int step) {
    context_.training = false;
    ignored.show(false);
    static_cast<void>(run_forward(c_, *model_, context_, step, rank_, DType::f32, nullptr));
    context_.training = true;
    ignored.show(true);
  }

  /// The rounds of one step. @returns their outputs.
  std::vector<Values> run_rounds(int step, double scale = 1) {
    std::vector<Values> outputs;
    struct Open {
      nn::Record record;
      Tensor dy;
    };
    std::vector<Open> open;
    for (std::size_t round = 0; round < c_.rounds.size(); ++round) {
      root().set_gradient_sync(c_.rounds[round].reduces);
      const int micro_batch = static_cast<int>(round) * c_.world_size + rank_;
      Open& now = open.emplace_back();
      // The root casts the input.
      const nn::Tensors ys = run_forward(c_, *model_, context_, step, micro_batch, DType::f32, &now.record);
      EXPECT_EQ(ys[0].dtype(), c_.dtype_of_output());
      outputs.push_back(values_of(context_, ys[0]));
      now.dy = output_gradient(c_, context_, step, micro_batch, scale);
      if (c_.rounds[round].joins_next) continue;
      std::optional<fsdp::BackwardPass> pass;
      if (open.size() > 1) pass.emplace(root());
      while (!open.empty()) {
        model_->backward(context_, std::move(open.back().record), {open.back().dy});
        open.pop_back();
      }
      if (pass) pass->finish();
    }
    if (c_.options.root->deterministic) {
      // Its gradients are sums over micro-batches; dy carries the division by the rounds already.
      fsdp::average_grads(root(), c_.world_size);
    }
    return outputs;
  }

  void step_by_hand(IgnoredParameters& ignored, int step, RankStep& now) {
    now.outputs = run_rounds(step);
    now.parts = parts_of(root(), *model_, context_, true);
    ignored.reduce(device_mesh_.metrics_group(), now.parts);
    root().reshard();
    for (const fsdp::Piece& p : root().pieces()) {
      if (!root().grad(p)) continue;
      Tensor wide = context_.make(root().grad(p).shape, DType::f32);
      context_.kernels.copy(context_.compute, root().grad(p), wide);
      context_.kernels.sgd(context_.compute, {.param = root().write_master(p), .grad = wide, .lr = kLr});
    }
    root().zero_grad();
    ignored.step();
  }

  void step_optimizer(int step, RankStep& now) {
    double scale = scaler_ ? scaler_->state().scale : 1;
    if (step == c_.overflow_step && rank_ == 0) scale *= 1e30;
    now.outputs = run_rounds(step, scale);
    if (scaler_) scaler_->unscale();
    now.parts = parts_of(root(), *model_, context_, true);
    optim::StepArgs args{.lr = kLr};
    std::optional<optim::ClipCoefficient> clip;
    Tensor norm;
    if (c_.clipping && c_.clipping->in_place) {
      norm = optim::clip_grad_norm(root(), c_.clipping->max_norm, c_.clipping->p);
    } else if (c_.clipping) {
      clip = optim::clip_coefficient(root(), c_.clipping->max_norm, c_.clipping->p);
      args.grad_scale = clip->coefficient.view();
      norm = clip->norm;
    }
    if (c_.clipping) now.norm = values_of(context_, norm)[0];
    if (scaler_) {
      args.skip = scaler_->found_inf();
      args.skipped_steps = scaler_->skipped_steps();
      now.is_skipped = values_of(context_, scaler_->found_inf())[0] != 0;
    }
    optimizer_->step(args);
    if (scaler_) scaler_->update();
    root().zero_grad();
  }

  void step_in_backward(int step, RankStep& now) {
    context_.compute.synchronize();
    now.parts = parts_of(root(), *model_, context_, false);
    in_backward_->begin_step(kLr);
    now.outputs = run_rounds(step);
  }

  const RandomCase& c_;
  int rank_;
  Device device_;
  std::unique_ptr<Mesh> other_mesh_;
  Mesh mesh_;
  fsdp::DeviceMesh device_mesh_;
  std::unique_ptr<fsdp::DeviceMesh> other_grid_;
  nn::Context context_;
  std::unique_ptr<RandomModel> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::OptimizerInBackward> in_backward_;
  std::unique_ptr<optim::GradScaler> scaler_;
};

}  // namespace mica::testing
