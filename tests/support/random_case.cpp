// SPDX-License-Identifier: Apache-2.0
// What is drawn of a case, and how it is told.
#include "support/random_case.hpp"

#include <algorithm>
#include <limits>

#include <fmt/ranges.h>

#include "mica/fsdp/deterministic.hpp"

namespace mica::testing {
namespace {

using fsdp::Strategy;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// splitmix64: the same numbers everywhere.
class Dice {
 public:
  /// The seed is mixed: with a state that grows by a constant, plain neighbours would draw each other's numbers, one later.
  explicit Dice(std::uint64_t seed) : state_(seed) { state_ = next(); }
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

/// What steps the masters, and whether the state is saved and loaded in the middle. An optimizer would step what the test
/// holds of ignored parameters in param_dtype: then there is none.
void draw_stepping(Dice& dice, RandomCase& c) {
  using Stepping = RandomCase::Stepping;
  const fsdp::GradientReduction* reduction = c.options.reduction;
  if (c.ignoring != RandomCase::Ignoring::nothing || dice.one_in(3)) return;
  c.stepping = Stepping::optimizer;
  if (dice.one_in(4) && c.options.root->use_orig_params && !c.options.root->deterministic && c.options.strategy != Strategy::shard_optim) {
    c.stepping = Stepping::in_backward;
    // A unit inside a checkpointed region reduces in each backward: there, two of one pass would step it twice, which is refused.
    const bool may_join = std::ranges::none_of(c.blocks, [](const RandomCase::Block& b) { return b.is_checkpointed && b.has_inner_unit; });
    for (RandomCase::Round& round : c.rounds) {
      round.reduces = &round == &c.rounds.back();
      round.joins_next = round.joins_next && may_join;
    }
    for (std::size_t i = c.rounds.size(); i-- > 1;) {
      if (c.rounds[i - 1].joins_next) c.rounds[i - 1].reduces = c.rounds[i].reduces;
    }
  } else {
    c.momentum = dice.of({0.0, 0.5});
    if (dice.one_in(2)) c.clipping = {dice.of({0.1, 1.0, 100.0}), dice.of({1.0, 2.0, 3.0, kInfinity}), dice.one_in(2)};
    const bool has_f16 = c.options.param_dtype() == DType::f16 || c.options.reduce_dtype() == DType::f16 ||
                         (reduction && reduction->wire_dtype() == DType::f16);
    if (has_f16) c.loss_scale = 8;
    if (has_f16 && dice.one_in(3)) c.overflow_step = static_cast<int>(dice.below(c.num_steps));
  }
  if (!dice.one_in(2)) return;
  // What is not sharded has no rows and no shard of its own.
  const bool is_sharded = c.shard_size > 1 && c.other_shard_size == 0 &&
                          std::ranges::none_of(c.blocks, [](const RandomCase::Block& b) { return b.is_no_shard; });
  using Kind = fsdp::StateDictKind;
  c.reload = {.before_step = static_cast<int>(1 + dice.below(c.num_steps - 1)),
              .kind = is_sharded ? dice.of({Kind::full, Kind::sharded, Kind::local}) : Kind::full,
              .from_rank0 = dice.one_in(2)};
}

constexpr int kMaxSteps = 3;
const std::vector<fsdp::BackwardPrefetch> kBackwardPrefetches{fsdp::BackwardPrefetch::pre, fsdp::BackwardPrefetch::post,
                                                              fsdp::BackwardPrefetch::none};

}  // namespace

RandomCase::RandomCase(std::uint64_t case_seed) : seed(case_seed) {
  Dice dice(case_seed);
  world_size = static_cast<int>(1 + dice.below(6));
  options.strategy = dice.of({Strategy::full_shard, Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard,
                              Strategy::hybrid_shard, Strategy::hybrid_shard_zero2, Strategy::shard_optim});
  shard_size = fsdp::is_hybrid(options.strategy) ? dice.of(divisors(world_size)) : options.strategy == Strategy::no_shard ? 1 : world_size;

  std::int64_t width = dice.of<std::int64_t>({1, 2, 3, 5, 7, 9, 12});
  bool has_tied = false;
  const auto num_blocks = static_cast<std::size_t>(1 + dice.below(5));
  for (std::size_t i = 0; i < num_blocks; ++i) {
    Block block{};
    block.kind = dice.of({Kind::linear, Kind::linear, Kind::two_layers, Kind::residual, Kind::shifted, Kind::tied});
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
    if ((block.kind == Kind::linear && dice.one_in(2)) || block.kind == Kind::two_layers || block.kind == Kind::shifted) {
      block.out = dice.of<std::int64_t>({1, 2, 3, 4, 6, 7, 11});
    }
    block.hidden = dice.of<std::int64_t>({1, 3, 8, 13});
    block.has_bias = !dice.one_in(3);
    block.is_unit = !dice.one_in(3);
    block.has_inner_unit = dice.one_in(4);
    block.is_checkpointed = dice.one_in(4);
    block.has_inner_checkpoint = dice.one_in(6);
    block.is_no_shard = dice.one_in(8);
    block.is_on_other_grid = dice.one_in(2);
    block.stays_unsharded = dice.one_in(8);
    block.has_hooks = dice.one_in(4);
    block.backward_prefetch = dice.of(kBackwardPrefetches);
    for (int step = 0; step < kMaxSteps; ++step) block.left_out.push_back(block.in == block.out && num_blocks > 1 && dice.one_in(6));
    blocks.push_back(block);
    width = block.out;
  }
  const std::int64_t frozen_one_in = dice.of<std::int64_t>({2, 5, 1000, 1000});
  for (int i = 0; i < 24; ++i) frozen.push_back(dice.one_in(frozen_one_in));
  rows = 1 + dice.below(4);

  fsdp::RootOptions& of_root = options.root.emplace();
  of_root.use_orig_params = !dice.one_in(3);
  options.wrapped_by_policy = has_tied;
  options.backward_prefetch = dice.of(kBackwardPrefetches);
  options.forward_prefetch = dice.one_in(2);
  of_root.limit_all_gathers = dice.one_in(2);
  fsdp::MixedPrecision& mixed_precision = options.mixed_precision;
  if (dice.one_in(3)) mixed_precision.param_dtype = dice.of({DType::bf16, DType::f16});
  if (dice.one_in(3)) mixed_precision.reduce_dtype = dice.of({DType::bf16, DType::f16, DType::f32});
  if (dice.one_in(2)) mixed_precision.buffer_dtype = dice.of({DType::bf16, DType::f16, DType::f32});
  mixed_precision.cast_forward_inputs = dice.one_in(3);
  mixed_precision.keep_low_precision_grads = dice.one_in(3);
  if (dice.one_in(4)) output_dtype = dice.of({DType::bf16, DType::f16, DType::f32});
  of_root.full_precision_in_eval = dice.one_in(3);
  options.cpu_offload =
      dice.of({fsdp::CpuOffload::none, fsdp::CpuOffload::none, fsdp::CpuOffload::gradients, fsdp::CpuOffload::parameters});
  if (dice.one_in(2)) options.sharding = fsdp::Sharding::per_parameter;
  const bool cuts_columns = options.sharding == fsdp::Sharding::per_parameter && dice.one_in(2);
  if (fsdp::reshards_after_forward(options.strategy) && !cuts_columns && dice.one_in(3)) {
    options.reshard_after_forward_ranks = dice.of(divisors(shard_size));
  }
  const std::int64_t reduction = dice.below(6);
  of_root.deterministic = reduction == 0;
  if (reduction == 1) options.reduction = &fsdp::compressing_reduction(dice.of({DType::bf16, DType::f16}));

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
    if (blocks[i].kind == Kind::shifted) ignored[i] = ignored[i] && ignoring != Ignoring::blocks;  // nobody holds its buffer
    if (ignoring == Ignoring::blocks && ignored[i]) blocks[i].is_unit = false;
  }
  recompute = dice.of({nn::Recompute::none, nn::Recompute::cheap});

  other_shard_size = reduction != 0 && dice.one_in(4) ? dice.of(divisors(world_size)) : 0;
  if (dice.one_in(4)) {
    for (std::size_t unit = 0; unit < num_blocks; ++unit) {
      lists.push_back({unit, {}, {}});
      for (std::int64_t i = dice.below(3); i > 0; --i) lists.back().forward.push_back(static_cast<std::size_t>(dice.below(8)));
      for (std::int64_t i = dice.below(3); i > 0; --i) lists.back().backward.push_back(static_cast<std::size_t>(dice.below(8)));
    }
  }
  // Whatever is between two units must take f32.
  const bool are_all_units = std::ranges::all_of(blocks, [](const Block& b) { return b.is_unit && b.kind != Kind::tied; });
  has_wide_outputs = are_all_units && !has_tied && ignoring == Ignoring::nothing && dice.one_in(2);

  draw_stepping(dice, *this);
  shares_memory = dice.one_in(2);
}

std::vector<bool> RandomCase::left_out_in(int step) const {
  std::vector<bool> left_out;
  for (const Block& block : blocks) left_out.push_back(block.left_out[static_cast<std::size_t>(step)]);
  if (std::ranges::find(left_out, false) == left_out.end()) left_out.back() = false;  // something has to run
  return left_out;
}

std::string RandomCase::describe() const {
  static constexpr const char* kKinds[] = {"linear", "two_layers", "residual", "shifted", "tied"};
  static constexpr const char* kPrefetches[] = {"pre", "post", "none"};
  static constexpr const char* kOffloads[] = {"none", "gradients", "parameters"};
  std::string text = fmt::format(
      "case {} (MICA_DIFFERENTIAL_CASE={} unit_fsdp --gtest_filter=Differential.*): world={} shard_size={}{} steps={} rows={}{}{}{}\n",
      seed, seed, world_size, shard_size, other_shard_size > 0 ? fmt::format(" and {}", other_shard_size) : "", num_steps, rows,
      threaded ? " threaded" : "", evaluates ? " evaluates" : "", shares_memory ? " shares memory" : "");
  text += fmt::format(
      "  fsdp.strategy={} sharding={} backward_prefetch={} forward_prefetch={} limit_all_gathers={} param_dtype={} "
      "reduce_dtype={} cpu_offload={} reshard_after_forward={} full_precision_in_eval={} reduction={} recompute={}\n",
      fsdp::strategy_name(options.strategy), options.sharding == fsdp::Sharding::flat ? "flat" : "per_parameter",
      kPrefetches[static_cast<int>(options.backward_prefetch)], options.forward_prefetch, options.root->limit_all_gathers,
      dtype_name(options.param_dtype()), dtype_name(options.reduce_dtype()), kOffloads[static_cast<int>(options.cpu_offload)],
      options.reshard_after_forward_ranks, options.root->full_precision_in_eval,
      options.root->deterministic ? "deterministic"
      : options.reduction         ? "compressed"
                                  : "default",
      recompute == nn::Recompute::none ? "none" : "cheap");
  const auto name_of = [](const std::optional<DType>& dtype) { return dtype ? dtype_name(*dtype) : "unset"; };
  const fsdp::MixedPrecision& mixed_precision = options.mixed_precision;
  text += fmt::format("  use_orig_params={} buffer_dtype={} cast_forward_inputs={} keep_low_precision_grads={} output_dtype={}{}\n",
                      options.root->use_orig_params, name_of(mixed_precision.buffer_dtype), mixed_precision.cast_forward_inputs,
                      mixed_precision.keep_low_precision_grads, name_of(output_dtype), has_wide_outputs ? ", blocks hand f32 on" : "");
  if (stepping == Stepping::in_backward) text += "  optimizer in backward\n";
  if (stepping == Stepping::optimizer)
    text += fmt::format("  optimizer, momentum={} loss_scale={}{}\n", momentum, loss_scale,
                        overflow_step >= 0 ? fmt::format(", an overflow in step {}", overflow_step + 1) : "");
  if (clipping)
    text += fmt::format("  clipping at {} with p={}{}\n", clipping->max_norm, clipping->p, clipping->in_place ? " in place" : "");
  if (reload) {
    text += fmt::format("  {} state dicts before step {}{}\n", fsdp::state_dict_kind_name(reload->kind), reload->before_step + 1,
                        reload->from_rank0 ? ", from rank 0" : "");
  }
  for (const Lists& each : lists) {
    text += fmt::format("  unit {} gathers ({}) in forward and ({}) in backward\n", each.unit, fmt::join(each.forward, " "),
                        fmt::join(each.backward, " "));
  }
  for (const fsdp::ShardDim& rule : options.shard_dims) text += fmt::format("  shard {} on dim {}\n", rule.pattern, rule.dim);
  text += "  rounds:";
  for (const Round& round : rounds) text += fmt::format(" {}{}", round.reduces ? "reduce" : "no_sync", round.joins_next ? "+" : "");
  for (const Block& b : blocks) {
    text += fmt::format("\n  {} {}->{} hidden {}{}{}{}{}{}{}{}{}{}{}", kKinds[static_cast<int>(b.kind)], b.in, b.out, b.hidden,
                        b.has_bias ? " bias" : "", b.tied_to >= 0 ? fmt::format(" to b{}", b.tied_to) : "", b.is_unit ? " unit" : "",
                        b.has_inner_unit ? " inner_unit" : "", b.is_checkpointed ? " checkpointed" : "",
                        b.has_inner_checkpoint ? " inner_checkpoint" : "", b.is_no_shard && b.is_unit ? " no_shard" : "",
                        b.is_on_other_grid && other_shard_size > 0 ? " other_grid" : "", b.stays_unsharded ? " stays_unsharded" : "",
                        b.has_hooks ? " hooks" : "");
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
