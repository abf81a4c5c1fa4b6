// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mica/optim/optimizer.hpp"

#include "unit/optim/sharded_weights.hpp"

// What the tests of optimizers' steps share.
namespace mica::optim::steps {

using test::ShardedOptions;
using test::ShardedWeights;
using test::Values;
using test::WeightSpec;

/// Any numbers, different for each salt.
inline Values numbers(std::int64_t numel, int salt) {
  Values values;
  for (std::int64_t i = 0; i < numel; ++i) values.push_back(std::sin(static_cast<float>(i * 7 + salt * 13 + 1)));
  return values;
}

inline WeightSpec weight(const std::string& name, std::int64_t numel, bool decays, int salt = 0) {
  return {name, Shape{numel}, decays, numbers(numel, salt)};
}

inline void set_grads(ShardedWeights& model, int salt) {
  for (test::Weights* part : model.model().parts()) {
    for (test::Weights::Weight& w : part->weights()) w.grad = numbers(w.parameter->shape.numel(), ++salt);
  }
}

/// Everything the rank holds: masters with their padding, then optimizer state.
inline std::vector<Values> snapshot(ShardedWeights& model, const Optimizer& optimizer) {
  model.device_mesh().compute().synchronize();
  std::vector<Values> found;
  const auto add = [&](ConstTensorView view) { found.emplace_back(view.as<float>(), view.as<float>() + view.numel()); };
  for (const fsdp::Unit* unit : model.root().units()) {
    if (unit->storage()) add(unit->storage()->master());
  }
  for (const StateShard& shard : optimizer.state()) add(shard.data);
  return found;
}

inline bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
inline bool same_bits(const std::vector<Values>& a, const std::vector<Values>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = same_bits(a[i], b[i]);
  return same;
}

inline void train_step(ShardedWeights& model, Optimizer& optimizer, int salt, const StepArgs& args = {.lr = 0.1}) {
  set_grads(model, salt);
  model.pass();
  optimizer.step(args);
  model.root().zero_grad();
}

using Make = std::function<std::unique_ptr<Optimizer>(fsdp::Root&)>;

inline const std::map<std::string, Make>& all_optimizers() {
  static const std::map<std::string, Make> kAll{
      {"adamw", [](fsdp::Root& root) { return make_adamw(root, {}); }},
      {"adam with L2", [](fsdp::Root& root) { return make_adamw(root, {.decoupled = false}); }},
      {"sgd", [](fsdp::Root& root) { return make_sgd(root, {.weight_decay = 0.1}); }},
      {"nesterov", [](fsdp::Root& root) { return make_sgd(root, {.momentum = 0.9, .nesterov = true}); }}};
  return kAll;
}

/// Odd sizes, gaps, a run over several parameters, a unit with fewer elements than ranks.
inline std::vector<std::vector<WeightSpec>> odd_units() {
  return {{weight("a", 64, false, 1), weight("b", 128, false, 2), weight("c", 67, true, 3)},
          {weight("d", 1, true, 4)},
          {weight("e", 5, true, 5), weight("f", 131, false, 6)}};
}
inline const std::vector<std::string> kOddNames{"u0.a", "u0.b", "u0.c", "u1.d", "u2.e", "u2.f"};

}  // namespace mica::optim::steps
