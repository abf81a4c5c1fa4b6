// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include "mica/fsdp/state_dict.hpp"
#include "mica/fsdp/summon.hpp"

#include "norm_like.hpp"
#include "rank_rig.hpp"

// What the tests of state dicts share.
namespace mica::fsdp::testing {

/// Linear(3 -> 5), then a unit of { Linear(5 -> 2), NormLike(2) }: a root unit and a unit "1". Parameters numbered.
struct Toy {
  explicit Toy(RankRig& rig, Options options = {}) {
    if (rig.mesh().replicas() > 1 && options.strategy == Strategy::full_shard) options.strategy = Strategy::hybrid_shard;
    model.add<nn::Linear>("0", 3, 5);
    auto& inner = model.add<nn::Sequential>("1", "inner");
    inner.add<nn::Linear>("out", 5, 2);
    norm = &inner.add<NormLike>("norm", 2);
    unit = &inner;
    fully_shard(inner, rig.device_mesh(), options);
    fully_shard(model, rig.device_mesh(), options);
    root().initialize(1);
    rig.number_masters(model);
  }
  Root& root() { return root_of(model); }
  void set(const StateDictSettings& settings) { set_state_dict_settings(model, settings); }
  void set(StateDictKind kind) { set(StateDictSettings::of(kind)); }
  void clear() {
    for (const Unit* each : root().units()) {
      const TensorView master = each->storage()->write_master();
      std::fill_n(master.as<float>(), master.numel(), -1.0F);
    }
    std::fill_n(norm->mean().data.as<float>(), 2, -1.0F);
  }
  nn::Sequential model;
  nn::Module* unit = nullptr;
  NormLike* norm = nullptr;
};

inline void expect_numbered(RankRig& rig, Toy& toy, const std::string& what = "") {
  SummonFullParams full(toy.model, {.write_back = false});
  int n = 0;
  toy.model.for_each_parameter([&](const std::string& name, nn::Parameter& p) {
    EXPECT_EQ(rig.values(p.data), numbered(n++, p.shape.numel())) << what << " " << name;
  });
}

}  // namespace mica::fsdp::testing
