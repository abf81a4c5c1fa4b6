#include "support/random_case.hpp"

#include <algorithm>
#include <unordered_set>

#include "mica/fsdp/deterministic.hpp"
#include "mica/nn/chain.hpp"
#include "mica/nn/gelu.hpp"
#include "mica/nn/layer_norm.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/sequential.hpp"

namespace mica::testing {
namespace {

using fsdp::Strategy;

/// splitmix64: the same numbers everywhere.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15U + 1) {}
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n)); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  }
  template <class T>
  T of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<std::int64_t>(values.size())))];
  }

 private:
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

std::vector<int> divisors(int n) {
  std::vector<int> found;
  for (int d = 1; d <= n; ++d) {
    if (n % d == 0) found.push_back(d);
  }
  return found;
}

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

constexpr double kWeightStd = 0.5;
constexpr int kMaxSteps = 3;

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

RandomCase::RandomCase(std::uint64_t case_seed) : seed(case_seed) {
  Dice dice(case_seed);
  world_size = static_cast<int>(1 + dice.below(6));
  options.strategy = dice.of({Strategy::full_shard, Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard,
                              Strategy::hybrid_shard, Strategy::hybrid_shard_zero2, Strategy::shard_optim});
  shard_size = fsdp::is_hybrid(options.strategy)        ? dice.of(divisors(world_size))
               : options.strategy == Strategy::no_shard ? 1
                                                        : world_size;

  std::int64_t width = dice.of<std::int64_t>({1, 2, 3, 5, 7, 9, 12});
  bool has_tied = false;
  const auto num_blocks = static_cast<std::size_t>(1 + dice.below(5));
  for (std::size_t i = 0; i < num_blocks; ++i) {
    Block block{};
    block.kind = dice.of({Kind::linear, Kind::linear, Kind::two_layers, Kind::residual, Kind::tied});
    block.in = block.out = width;
    if (block.kind == Kind::tied) {
      std::vector<int> squares;
      for (std::size_t j = 0; j < i; ++j) {
        if (blocks[j].kind == Kind::linear && blocks[j].in == width && blocks[j].out == width) squares.push_back(static_cast<int>(j));
      }
      if (squares.empty()) {
        block.kind = Kind::linear;
      } else {
        block.tied_to = dice.of(squares);
        has_tied = true;
      }
    }
    if ((block.kind == Kind::linear && dice.one_in(2)) || block.kind == Kind::two_layers) {
      block.out = dice.of<std::int64_t>({1, 2, 3, 4, 6, 7, 11});
    }
    block.hidden = dice.of<std::int64_t>({1, 3, 8, 13});
    block.has_bias = !dice.one_in(3);
    block.is_unit = !dice.one_in(3);
    block.has_inner_unit = dice.one_in(4);
    block.is_checkpointed = dice.one_in(4);
    block.has_inner_checkpoint = dice.one_in(6);
    block.is_no_shard = dice.one_in(8);
    for (int step = 0; step < kMaxSteps; ++step) block.left_out.push_back(block.in == block.out && num_blocks > 1 && dice.one_in(6));
    blocks.push_back(block);
    width = block.out;
  }
  const std::int64_t frozen_one_in = dice.of<std::int64_t>({2, 5, 1000, 1000});
  for (int i = 0; i < 24; ++i) frozen.push_back(dice.one_in(frozen_one_in));
  rows = 1 + dice.below(4);

  options.use_orig_params = true;  // units may mix frozen and trainable parameters
  options.wrapped_by_policy = has_tied;
  options.backward_prefetch = dice.of({fsdp::BackwardPrefetch::pre, fsdp::BackwardPrefetch::post, fsdp::BackwardPrefetch::none});
  options.forward_prefetch = dice.one_in(2);
  options.limit_all_gathers = dice.one_in(2);
  if (dice.one_in(3)) options.mixed_precision.param_dtype = DType::bf16;
  if (dice.one_in(3)) options.mixed_precision.reduce_dtype = dice.of({DType::bf16, DType::f32});
  options.full_precision_in_eval = dice.one_in(3);
  options.cpu_offload = dice.of({fsdp::CpuOffload::none, fsdp::CpuOffload::none, fsdp::CpuOffload::gradients, fsdp::CpuOffload::parameters});
  if (dice.one_in(2)) options.sharding = fsdp::Sharding::per_parameter;
  const bool cuts_columns = options.sharding == fsdp::Sharding::per_parameter && dice.one_in(2);
  if (fsdp::reshards_after_forward(options.strategy) && !cuts_columns && dice.one_in(3)) {
    options.reshard_after_forward_ranks = dice.of(divisors(shard_size));
  }
  const std::int64_t reduction = dice.below(6);
  if (reduction == 0) options.reduction = &fsdp::deterministic_reduction();
  if (reduction == 1) options.reduction = &fsdp::compressing_reduction(DType::bf16);

  const std::int64_t num_rounds = 1 + dice.below(4);
  for (std::int64_t i = 0; i < num_rounds; ++i) {
    Round round{};
    round.reduces = i + 1 == num_rounds || reduction == 0 || dice.one_in(2);
    round.joins_next = i + 1 < num_rounds && reduction != 0 && dice.one_in(4);
    rounds.push_back(round);
  }
  // Rounds that share a backward pass reduce alike.
  for (std::size_t i = rounds.size(); i-- > 1;) {
    if (rounds[i - 1].joins_next) rounds[i - 1].reduces = rounds[i].reduces;
  }
  evaluates = dice.one_in(3);
  threaded = dice.one_in(10);
  num_steps = static_cast<int>(2 + dice.below(kMaxSteps - 1));
  if (cuts_columns && world_size > 1) {  // every weight whose columns divide evenly
    auto model = make_model();
    model->for_each_parameter([&](const std::string& name, nn::Parameter& p) {
      if (p.shape.num_dims() == 2 && p.shape[1] % shard_size == 0) options.shard_dims.push_back({name, dice.one_in(2) ? 1 : -1});
    });
  }
  ignoring = dice.of({Ignoring::nothing, Ignoring::nothing, Ignoring::parameters, Ignoring::blocks});
  const std::int64_t ignored_one_in = dice.of<std::int64_t>({1, 2, 3, 6});
  for (int i = 0; i < 24; ++i) ignored.push_back(ignoring != Ignoring::nothing && dice.one_in(ignored_one_in));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (ignoring == Ignoring::blocks && ignored[i]) blocks[i].is_unit = false;
  }
  recompute = dice.of({nn::Recompute::none, nn::Recompute::cheap});
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
      case Kind::tied: module = &model->add<TiedLinear>(name, *square_weights[static_cast<std::size_t>(b.tied_to)]); break;
    }
    square_weights.push_back(weight);
    module->set_checkpointed(b.is_checkpointed);
    if (b.has_inner_checkpoint && !module->children().empty()) module->children().back().module->set_checkpointed(true);
  }
  std::size_t n = 0;
  model->for_each_parameter([&](const std::string&, nn::Parameter& p) {
    p.requires_grad = n >= frozen.size() || !frozen[n];
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

void RandomCase::shard(RandomModel& model, fsdp::DeviceMesh& device_mesh) const {
  fsdp::Options with_ignored = options, of_root = options;
  if (ignoring == Ignoring::parameters) {
    const std::vector<std::string> names = ignored_names();
    model.for_each_parameter([&](const std::string& name, nn::Parameter& p) {
      if (std::ranges::find(names, name) != names.end()) with_ignored.ignored_parameters.push_back(&p);
    });
    of_root = with_ignored;
  }
  for (std::size_t i = 0; ignoring == Ignoring::blocks && i < blocks.size(); ++i) {
    if (ignored[i]) of_root.ignored_modules.push_back(model.children()[i].module);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    nn::Module& block = *model.children()[i].module;
    if (blocks[i].has_inner_unit && !block.children().empty())
      fully_shard(*block.children().front().module, device_mesh, with_ignored);
    if (!blocks[i].is_unit) continue;
    fsdp::Options own = with_ignored;
    if (blocks[i].is_no_shard) {
      own.strategy = Strategy::no_shard;
      own.reshard_after_forward_ranks = 0;
    }
    fully_shard(block, device_mesh, own);
  }
  fully_shard(model, device_mesh, of_root);
}

std::vector<bool> RandomCase::left_out_in(int step) const {
  std::vector<bool> left_out;
  for (const Block& block : blocks) left_out.push_back(block.left_out[static_cast<std::size_t>(step)]);
  if (std::ranges::find(left_out, false) == left_out.end()) left_out.back() = false;  // something has to run
  return left_out;
}

std::string RandomCase::describe() const {
  static constexpr const char* kKinds[] = {"linear", "two_layers", "residual", "tied"};
  static constexpr const char* kPrefetches[] = {"pre", "post", "none"};
  static constexpr const char* kOffloads[] = {"none", "gradients", "parameters"};
  std::string text = fmt::format("case {} (MICA_DIFFERENTIAL_CASE={} unit_fsdp --gtest_filter=Differential.*): world={} shard_size={} steps={} rows={}{}{}\n",
                                 seed, seed, world_size, shard_size, num_steps, rows, threaded ? " threaded" : "", evaluates ? " evaluates" : "");
  text += fmt::format("  fsdp.strategy={} sharding={} backward_prefetch={} forward_prefetch={} limit_all_gathers={} param_dtype={} "
                      "reduce_dtype={} cpu_offload={} reshard_after_forward={} full_precision_in_eval={} reduction={} recompute={}\n",
                      fsdp::strategy_name(options.strategy), options.sharding == fsdp::Sharding::flat ? "flat" : "per_parameter",
                      kPrefetches[static_cast<int>(options.backward_prefetch)], options.forward_prefetch, options.limit_all_gathers,
                      dtype_name(options.param_dtype()), dtype_name(options.reduce_dtype()), kOffloads[static_cast<int>(options.cpu_offload)],
                      options.reshard_after_forward_ranks, options.full_precision_in_eval,
                      !options.reduction                      ? "default"
                      : options.reduction->is_deterministic() ? "deterministic"
                                                              : "bf16",
                      recompute == nn::Recompute::none ? "none" : "cheap");
  for (const fsdp::ShardDim& rule : options.shard_dims) text += fmt::format("  shard {} on dim {}\n", rule.pattern, rule.dim);
  text += "  rounds:";
  for (const Round& round : rounds) text += fmt::format(" {}{}", round.reduces ? "reduce" : "no_sync", round.joins_next ? "+" : "");
  for (const Block& b : blocks) {
    text += fmt::format("\n  {} {}->{} hidden {}{}{}{}{}{}{}{}", kKinds[static_cast<int>(b.kind)], b.in, b.out, b.hidden, b.has_bias ? " bias" : "",
                        b.tied_to >= 0 ? fmt::format(" to b{}", b.tied_to) : "", b.is_unit ? " unit" : "", b.has_inner_unit ? " inner_unit" : "",
                        b.is_checkpointed ? " checkpointed" : "", b.has_inner_checkpoint ? " inner_checkpoint" : "",
                        b.is_no_shard && b.is_unit ? " no_shard" : "");
    for (int step = 0; step < num_steps; ++step) {
      if (b.left_out[static_cast<std::size_t>(step)]) text += fmt::format(", not in step {}", step + 1);
    }
  }
  text += "\n  frozen parameters:";
  auto model = make_model();
  model->for_each_parameter([&](const std::string& name, nn::Parameter& p) {
    if (!p.requires_grad) text += fmt::format(" {}", name);
  });
  text += ignoring == Ignoring::blocks ? "\n  ignored blocks:" : "\n  ignored parameters:";
  for (const std::string& name : ignored_names()) text += " " + name;
  return text;
}

}  // namespace mica::testing
