// SPDX-License-Identifier: Apache-2.0
// The model of a random case, and how it is sharded.
#include <algorithm>
#include <unordered_set>

#include "mica/nn/activation.hpp"
#include "mica/nn/chain.hpp"
#include "mica/nn/layer_norm.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/sequential.hpp"

#include "support/random_case.hpp"

namespace mica::testing {
namespace {

using fsdp::Strategy;

constexpr double kWeightStd = 0.5;

/// y = x W^T with another module's square W.
class TiedLinear final : public nn::Module {
 public:
  explicit TiedLinear(nn::Parameter& weight) : Module("tied_linear"), weight_(weight) { share_parameter(weight); }

 private:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record* record) override {
    Tensor y = context.make(xs[0].shape(), weight_.data.dtype);
    context.kernels.linear(context.compute, xs[0], data_of(weight_), {}, y);
    if (record) {
      y.needs_grad = xs[0].needs_grad || weight_.requires_grad;
      record->saved = {xs[0]};
    }
    return nn::list_of(std::move(y));
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) override {
    if (const nn::GradTarget target = weight_.write_grad(); target.view) {
      context.kernels.linear_backward_params(context.compute, dys[0], record.saved[0], target.view, {}, target.mode);
    }
    if (!record.needs_dx(0)) return nn::Tensors(1);
    Tensor dx = context.make(dys[0].shape(), dys[0].dtype());
    context.kernels.linear_backward_input(context.compute, dys[0], data_of(weight_), dx, Write::overwrite);
    return nn::list_of(std::move(dx));
  }
  nn::Parameter& weight_;
};

/// y = x + a buffer of the batch's shape.
class Shift final : public nn::Module {
 public:
  explicit Shift(Shape shape) : Module("shift"), shift_(add_buffer("shift", shape, DType::f32, nn::Initializer::normal(1))) {}

 private:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record*) override {
    const Tensor shift = context.make(shift_.shape, xs[0].dtype());
    context.kernels.copy(context.compute, data_of(shift_), shift);
    Tensor y = context.make(xs[0].shape(), xs[0].dtype());
    context.kernels.add(context.compute, xs[0], shift, y);
    y.needs_grad = xs[0].needs_grad;
    return nn::list_of(std::move(y));
  }
  nn::Tensors do_backward(nn::Context&, nn::Record&, nn::Tensors dys) override { return dys; }

  nn::ModuleBuffer& shift_;
};

/// Sends f32 whatever the module wants: every bit as without hooks.
fsdp::AllGatherHooks f32_all_gather() {
  fsdp::AllGatherHooks hooks;
  hooks.pre = [](const fsdp::AllGatherHooks::PreArgs& args) {
    const Shape shape = args.shard.shape;
    Tensor sent(args.pool.allocate(shape.numel() * dtype_bytes(DType::f32), MemoryRole::communication, args.stream), shape, DType::f32);
    args.kernels.copy(args.stream, args.shard, sent);
    return fsdp::AllGatherHooks::Inputs{{std::move(sent)}, nullptr};
  };
  hooks.post = [](const fsdp::AllGatherHooks::PostArgs& args) {
    args.kernels.copy(args.stream, args.gathered[0].reshaped(args.parameter.shape), args.parameter);
  };
  return hooks;
}

/// Where there can be some: on parameters that are cut one by one along dim 0, and gathered over the whole shard axis.
void set_hooks(const fsdp::Unit& unit) {
  fsdp::UnitStorage* storage = unit.storage();
  const fsdp::Options& options = unit.options();
  if (!storage || storage->shard_size() == 1 || options.sharding != fsdp::Sharding::per_parameter || !options.shard_dims.empty() ||
      options.reshard_after_forward_ranks > 0) {
    return;
  }
  for (const fsdp::UnitParameter& p : storage->parameters()) storage->set_all_gather_hooks(*p.parameter, f32_all_gather());
}

}  // namespace

void RandomModel::leave_out(const std::vector<bool>& left_out) {
  chain_.clear();
  for (std::size_t i = 0; i < children().size(); ++i) {
    if (!left_out[i]) chain_.push_back(children()[i].module);
  }
}

nn::Tensors RandomModel::do_forward(nn::Context& context, nn::Tensors xs, nn::Record* record) {
  return nn::chain_forward(context, chain_, std::move(xs), record);
}

nn::Tensors RandomModel::do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) {
  return nn::chain_backward(context, chain_, record, std::move(dys));
}

std::unique_ptr<RandomModel> RandomCase::make_model() const {
  auto model = std::make_unique<RandomModel>();
  std::vector<nn::Parameter*> square_weights;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Block& b = blocks[i];
    const std::string name = fmt::format("b{}", i);
    const nn::LinearOptions linear{.bias = b.has_bias, .weight_std = kWeightStd};
    nn::Module* module = nullptr;
    nn::Parameter* weight = nullptr;
    switch (b.kind) {
      case Kind::linear:
        module = &model->add<nn::Linear>(name, b.in, b.out, linear);
        weight = module->own_parameters().front().get();
        break;
      case Kind::two_layers: {
        auto& sequential = model->add<nn::Sequential>(name);
        sequential.add<nn::Linear>("up", b.in, b.hidden, linear);
        sequential.add<nn::Gelu>("act");
        sequential.add<nn::Linear>("down", b.hidden, b.out, linear);
        module = &sequential;
        break;
      }
      case Kind::residual: {
        auto& residual = model->add<nn::Residual>(name);
        residual.add<nn::LayerNorm>("norm", b.in);
        residual.add<nn::Linear>("fc", b.in, b.in, linear);
        module = &residual;
        break;
      }
      case Kind::shifted: {
        auto& sequential = model->add<nn::Sequential>(name);
        sequential.add<nn::Linear>("fc", b.in, b.out, linear);
        sequential.add<Shift>("shift", Shape{rows, b.out});
        module = &sequential;
        break;
      }
      case Kind::tied:
        module = &model->add<TiedLinear>(name, *square_weights[static_cast<std::size_t>(b.tied_to)]);
        break;
    }
    square_weights.push_back(weight);
    module->set_checkpointed(b.is_checkpointed);
    if (b.has_inner_checkpoint && !module->children().empty()) module->children().back().module->set_checkpointed(true);
  }
  std::size_t n = 0;
  const bool has_tied = std::ranges::any_of(blocks, [](const Block& b) { return b.kind == Kind::tied; });
  model->for_each_parameter([&](const std::string& name, nn::Parameter& p) {
    // Without original-parameter mode a unit is frozen whole or not at all, and which one holds what is shared is not
    // seen from here.
    const std::size_t block = std::stoul(name.substr(1));  // "b3.up.weight"
    const bool can_be = options.root->use_orig_params || (blocks[block].is_unit && !has_tied);
    const std::size_t i = options.root->use_orig_params ? n : block;
    p.requires_grad = !can_be || i >= frozen.size() || !frozen[i];
    ++n;
  });
  return model;
}

std::vector<std::string> RandomCase::ignored_names() const {
  const auto model = make_model();
  std::unordered_set<const nn::Parameter*> found;
  std::size_t n = 0;
  model->for_each_parameter([&](const std::string&, nn::Parameter& p) {
    if (ignoring == Ignoring::parameters && n < ignored.size() && ignored[n]) found.insert(&p);
    ++n;
  });
  for (std::size_t i = 0; ignoring == Ignoring::blocks && i < blocks.size(); ++i) {
    if (!ignored[i]) continue;
    bool is_first = true;
    model->children()[i].module->for_each_module([&](const std::string& name, nn::Module& module) {
      const bool is_inner_unit = blocks[i].has_inner_unit && is_first && !name.empty();
      if (!name.empty()) is_first = false;
      if (is_inner_unit) return;
      for (const auto& p : module.own_parameters()) found.insert(p.get());
      for (const nn::Parameter* p : module.shared_parameters()) found.insert(p);
    });
  }
  std::vector<std::string> names;
  model->for_each_parameter([&](const std::string& name, nn::Parameter& p) {
    if (found.contains(&p)) names.push_back(name);
  });
  return names;
}

fsdp::Options RandomCase::options_of(const Block& block) const {
  fsdp::Options own = options;
  own.backward_prefetch = block.backward_prefetch;
  if (has_wide_outputs) {
    own.mixed_precision.cast_forward_inputs = true;
    own.mixed_precision.output_dtype = DType::f32;
  }
  if (block.is_no_shard || other_shard_size > 0) own.reshard_after_forward_ranks = 0;
  if (block.is_no_shard) own.strategy = Strategy::no_shard;
  if (other_shard_size > 0 && block.is_on_other_grid) {
    own.strategy = fsdp::reshards_after_forward(options.strategy) ? Strategy::hybrid_shard : Strategy::hybrid_shard_zero2;
    own.shard_dims.clear();  // which divide evenly on the root's grid
  }
  return own;
}

void RandomCase::shard(RandomModel& model, fsdp::DeviceMesh& device_mesh, fsdp::DeviceMesh* other_grid) const {
  fsdp::Options of_root = options;
  of_root.mixed_precision.output_dtype = output_dtype;
  std::vector<nn::Parameter*> ignored_parameters;
  if (ignoring == Ignoring::parameters) {
    const std::vector<std::string> names = ignored_names();
    model.for_each_parameter([&](const std::string& name, nn::Parameter& p) {
      if (std::ranges::find(names, name) != names.end()) ignored_parameters.push_back(&p);
    });
    of_root.ignored_parameters = ignored_parameters;
  }
  for (std::size_t i = 0; ignoring == Ignoring::blocks && i < blocks.size(); ++i) {
    if (ignored[i]) of_root.ignored_modules.push_back(model.children()[i].module);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    nn::Module& block = *model.children()[i].module;
    if (blocks[i].has_inner_unit && !block.children().empty()) {
      fsdp::Options inner = options;
      inner.mixed_precision.cast_forward_inputs = inner.mixed_precision.cast_forward_inputs || has_wide_outputs;
      inner.ignored_parameters = ignored_parameters;
      fully_shard(*block.children().front().module, device_mesh, inner);
    }
    if (!blocks[i].is_unit) continue;
    fsdp::Options own = options_of(blocks[i]);
    own.ignored_parameters = ignored_parameters;
    const bool is_elsewhere = other_grid && blocks[i].is_on_other_grid;
    fsdp::Unit& unit = fully_shard(block, is_elsewhere ? *other_grid : device_mesh, own);
    unit.set_reshard_after_backward(!blocks[i].stays_unsharded || stepping == Stepping::in_backward);
  }
  fully_shard(model, device_mesh, of_root);
  const std::vector<fsdp::Unit*>& units = fsdp::root_of(model).units();
  const auto units_of = [&](const std::vector<std::size_t>& numbers) {
    std::vector<fsdp::Unit*> found;
    for (const std::size_t number : numbers) found.push_back(units[number % units.size()]);
    return found;
  };
  for (const Lists& each : lists) {
    units[each.unit % units.size()]->set_forward_prefetch(units_of(each.forward));
    units[each.unit % units.size()]->set_backward_prefetch(units_of(each.backward));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto* unit = dynamic_cast<fsdp::Unit*>(model.children()[i].module->hooks());
    if (unit && blocks[i].has_hooks) set_hooks(*unit);
  }
}

}  // namespace mica::testing
