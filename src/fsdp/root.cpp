#include "mica/fsdp/root.hpp"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

namespace mica::fsdp {
namespace {

/// The units around a module, outermost first.
using UnitChain = std::vector<Unit*>;

/// The innermost unit that is around every one of these modules.
Unit* innermost_common_unit(const std::vector<const UnitChain*>& chains) {
  std::size_t depth = chains.front()->size();
  for (const UnitChain* chain : chains) {
    depth = std::min(depth, static_cast<std::size_t>(std::ranges::mismatch(*chain, *chains.front()).in1 - chain->begin()));
  }
  return (*chains.front())[depth - 1];
}

/// Buffers that a limiter keeps back: see [Note: rate limiter].
std::size_t num_held(const DeviceMesh& device_mesh) { return device_mesh.streams().mode == StreamMode::inlined ? 0 : 1; }

}  // namespace

std::string_view training_state_name(TrainingState state) {
  switch (state) {
    case TrainingState::idle: return "idle";
    case TrainingState::forward: return "in forward";
    case TrainingState::backward: return "in backward";
  }
  return "?";
}

Root::Root(Unit& unit)
    : unit_(unit),
      param_limiter_(num_held(unit.device_mesh()), unit.options().limit_all_gathers),
      grad_limiter_(num_held(unit.device_mesh()), unit.options().limit_all_gathers) {
  std::unordered_map<const nn::Module*, UnitChain> chains;
  unit.module().for_each_module([&](const std::string& name, nn::Module& module) {
    auto* nested = dynamic_cast<Unit*>(module.hooks());
    if (!nested) return;
    require<ConfigError>(!nested->root_ || nested == &unit,
                         "unit {} has been used as a root of its own and cannot be nested in {} any more: shard the "
                         "outer module before the first forward",
                         name, unit.module().type_name());
    nested->root_ = this;
    nested->name_ = name.empty() ? "root" : name;
    units_.push_back(nested);
    module.for_each_module([&](const std::string&, nn::Module& inside) { chains[&inside].push_back(nested); });
  });
  assign_parameters([&](const nn::Module& module) -> const UnitChain& { return chains.at(&module); });
}

// [Note: shared parameters]
// A parameter that several modules use (a tied head) must be gathered whenever one of them runs, so it belongs to the
// innermost unit around all of them. Policies may wrap its owner alone; by hand that would be a surprise and is refused.
void Root::assign_parameters(const std::function<const std::vector<Unit*>&(const nn::Module&)>& units_around) {
  std::unordered_map<const nn::Parameter*, std::vector<std::pair<std::string, const UnitChain*>>> users;
  unit_.module().for_each_module([&](const std::string& name, nn::Module& module) {
    for (const auto& p : module.own_parameters()) users[p.get()].emplace_back(name, &units_around(module));
    for (const nn::Parameter* p : module.shared_parameters()) users[p].emplace_back(name, &units_around(module));
  });
  std::unordered_map<Unit*, std::vector<UnitParameter>> parameters;
  unit_.module().for_each_parameter([&](const std::string& full_name, nn::Parameter& parameter) {
    std::vector<const UnitChain*> chains;
    for (const auto& [name, chain] : users.at(&parameter)) chains.push_back(chain);
    Unit* owner = innermost_common_unit(chains);
    for (const auto& [name, chain] : users.at(&parameter)) {
      const auto split = std::find_if(std::ranges::find(*chain, owner) + 1, chain->end(),
                                      [](const Unit* u) { return !u->options().wrapped_by_policy; });
      require<ConfigError>(split == chain->end(),
                           "parameter {} is shared by {} and {}; wrapping {} by hand would split it: wrap a module that "
                           "holds all of its users, or neither",
                           full_name, users.at(&parameter).front().first, users.at(&parameter).back().first,
                           split == chain->end() ? name : (*split)->name());
    }
    parameters[owner].push_back({full_name, &parameter});
  });
  for (Unit* each : units_) {
    const auto mine = parameters.find(each);
    if (mine == parameters.end()) continue;
    each->storage_ = std::make_unique<UnitStorage>(each->name_, std::move(mine->second), each->device_mesh_, each->options_);
  }
}

void Root::initialize(std::uint64_t seed) {
  for (Unit* each : units_) {
    if (each->storage_) each->storage_->initialize(seed);
  }
}

std::vector<ShardedParameter> Root::parameters() const {
  std::vector<ShardedParameter> found;
  for (const Unit* each : units_) {
    if (!each->storage_) continue;
    for (Piece& piece : each->storage_->layout().pieces(each->storage_->shard_rank())) {
      const auto owner = std::ranges::find(each->storage_->parameters(), piece.parameter, &UnitParameter::full_name);
      found.push_back({each->storage_.get(), owner->parameter, std::move(piece)});
    }
  }
  return found;
}

void Root::zero_grad() {
  require(state_ == TrainingState::idle, "zero_grad is called while the root is {}", training_state_name(state_));
  for (Unit* each : units_) {
    if (each->storage_) each->storage_->zero_grad();
  }
}

void Root::reshard() {
  require(state_ == TrainingState::idle, "reshard is called while the root is {}", training_state_name(state_));
  for (Unit* each : units_) {
    if (each->storage_) each->storage_->reshard(param_limiter_);
  }
  param_limiter_.flush();
}

void Root::set_gradient_sync(bool on) {
  require(state_ == TrainingState::idle, "gradient synchronisation is switched while the root is {}: do it between passes",
          training_state_name(state_));
  gradient_sync_ = on;
}

// --- the pass ------------------------------------------------------------------------------------------------------

void Root::begin_forward() {
  require(state_ == TrainingState::idle, "forward of the root is called while it is {}", training_state_name(state_));
  state_ = TrainingState::forward;
  order_.begin_forward();
  // The optimizer writes masters on the compute stream: no cast and no gather may read them before it is done.
  const Streams& streams = device_mesh().streams();
  const Event optimizer_done = streams.compute->record();
  streams.pre_unshard->wait(optimizer_done);
  streams.unshard->wait(optimizer_done);
}

void Root::end_forward(bool is_training) {
  order_.end_forward(is_training);
  state_ = TrainingState::idle;
}

void Root::begin_backward() {
  if (state_ == TrainingState::backward) return;
  require(state_ == TrainingState::idle, "backward of the root is called while it is {}", training_state_name(state_));
  state_ = TrainingState::backward;
  order_.begin_backward();
}

void Root::end_backward() {
  for (Unit* each : units_) {
    if (!each->storage_) continue;
    if (reshards_after_backward(*each)) each->storage_->reshard(param_limiter_);
    if (gradient_sync_) each->storage_->reduce_grads(grad_limiter_);
  }
  const Streams& streams = device_mesh().streams();
  streams.compute->wait(streams.post_backward->record());
  streams.compute->wait(streams.all_reduce->record());
  param_limiter_.flush();
  grad_limiter_.flush();
  order_.clear();
  state_ = TrainingState::idle;
}

void Root::finish_unit(Unit& unit) {
  if (!unit.storage_) return;
  if (reshards_after_backward(unit)) unit.storage_->reshard(param_limiter_);
  if (options().backward_prefetch == BackwardPrefetch::post) prefetch_backward(unit.backward_next_);
  if (gradient_sync_) unit.storage_->reduce_grads(grad_limiter_);
}

bool Root::reshards_after_backward(const Unit& unit) const {
  // What keeps parameters between forward and backward also keeps them between the micro-batches of a no_sync step:
  // they do not change.
  return gradient_sync_ || reshards_after_forward(unit.options_.strategy);
}

void Root::gather(Unit& unit) {
  if (!unit.storage_) return;
  unit.storage_->unshard(param_limiter_);
  unit.storage_->expose();
}

void Root::prefetch_forward(Unit& unit) {
  Unit* next = order_.next_in_forward(unit);
  if (next && next->storage_) next->storage_->unshard(param_limiter_);
}

void Root::prefetch_backward(Unit* next) {
  if (next && next->storage_ && *next->outstanding_ > 0) next->storage_->unshard(param_limiter_);
}

void Root::abandon_step() noexcept {
  const Streams& streams = device_mesh().streams();
  Stream* const all[] = {streams.pre_unshard.get(), streams.unshard.get(), streams.post_backward.get(),
                         streams.all_reduce.get(), streams.compute.get()};
  drain_and_clear_errors(all);
  param_limiter_.drop();
  grad_limiter_.drop();
  for (Unit* each : units_) {
    if (each->storage_) each->storage_->drop_step();
    // Tickets that are still held count down the abandoned step's counter, not the next one's.
    each->outstanding_ = std::make_shared<int>(0);
  }
  order_.clear();
  explicit_pass_ = false;
  state_ = TrainingState::idle;
}

std::string Root::describe() const {
  std::string text = fmt::format("{:<28} {:>14} {:>14} {:>8}  {:<18} {:<6} {}\n", "unit", "parameters", "per rank", "padding",
                                 "strategy", "param", "reduce");
  for (const Unit* each : units_) {
    const UnitStorage* storage = each->storage_.get();
    if (!storage) {
      text += fmt::format("{:<28} {:>14}\n", each->name_, "none");
      continue;
    }
    const FlatLayout& layout = storage->layout();
    text += fmt::format("{:<28} {:>14} {:>14} {:>8}  {:<18} {:<6} {}\n", each->name_, layout.param_numel(),
                        layout.shard_numel(), layout.unsharded_numel() - layout.param_numel(),
                        strategy_name(each->options_.strategy), dtype_name(each->options_.param_dtype()),
                        dtype_name(each->options_.reduce_dtype()));
  }
  return text;
}

// --- explicit passes -------------------------------------------------------------------------------------------------

BackwardPass::BackwardPass(Root& root) : root_(root) {
  root_.begin_backward();
  root_.explicit_pass_ = true;
}

BackwardPass::~BackwardPass() {
  if (!open_) return;
  root_.explicit_pass_ = false;  // unwinding: the caller abandons the step
}

void BackwardPass::finish() {
  open_ = false;
  root_.explicit_pass_ = false;
  root_.end_backward();
}

}  // namespace mica::fsdp
