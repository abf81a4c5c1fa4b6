// SPDX-License-Identifier: Apache-2.0
// docs/parity.md C5: deferred initialisation.
#include <map>
#include <numeric>

#include "mica/fsdp/summon.hpp"
#include "mica/fsdp/wrap_policy.hpp"
#include "mica/nn/embedding.hpp"
#include "mica/nn/init.hpp"
#include "mica/nn/models/gpt2.hpp"

#include "norm_like.hpp"
#include "rank_rig.hpp"
#include "support/temporary_folder.hpp"

namespace mica::fsdp::testing {
namespace {

using mica::test::error_of;

/// Sets element e of a module's n-th own parameter to 100 * n + e, its buffers to -1.
void count_up(ModuleInit& init) {
  int n = 0;
  for (const auto& parameter : init.module().own_parameters()) {
    const TensorView data = init.data(*parameter);
    std::iota(data.as<float>(), data.as<float>() + data.numel(), 100.0F * static_cast<float>(n++));
  }
  for (const auto& buffer : init.module().own_buffers()) init.kernels().fill(init.stream(), init.data(*buffer), -1);
}

/// Linear(3 -> 5) | a unit of { NormLike(5), Linear(5 -> 2) }; names 0, 1, 1.norm, 1.out.
std::unique_ptr<nn::Sequential> make_nested(RankRig& rig, const Options& options = {}) {
  auto model = std::make_unique<nn::Sequential>("model");
  model->add<nn::Linear>("0", 3, 5);
  auto& inner = model->add<nn::Sequential>("1", "inner");
  inner.add<NormLike>("norm", 5);
  inner.add<nn::Linear>("out", 5, 2);
  fully_shard(inner, rig.device_mesh(), options);
  fully_shard(*model, rig.device_mesh(), options);
  return model;
}

std::map<std::string, std::vector<float>> whole_values(RankRig& rig, nn::Module& module) {
  std::map<std::string, std::vector<float>> values;
  SummonFullParams full(module, {.write_back = false});
  module.for_each_parameter([&](const std::string& name, nn::Parameter& p) { values[name] = rig.values(p.data); });
  return values;
}

// C5: without a function the Initializers are used, the same whatever the ranks.
TEST(C5Deferred, DefaultValuesAreThoseOfAnUnshardedModel) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_local_ranks(ranks, [](auto world) {
      RankRig rig(std::move(world));
      auto model = make_nested(rig);
      root_of(*model).initialize(9);
      const auto values = whole_values(rig, *model);
      rig.context().seed = 9;
      auto plain = make_nested(rig);
      for (nn::Module* module : {static_cast<nn::Module*>(plain.get()), plain->children()[1].module}) module->set_hooks(nullptr);
      const nn::PlainParameters storage(*plain, rig.context());
      plain->for_each_parameter([&](const std::string& name, nn::Parameter& p) { EXPECT_EQ(values.at(name), rig.values(p.data)) << name; });
      plain->for_each_buffer([&](const std::string& name, nn::ModuleBuffer& b) {
        const auto& mine = root_of(*model).buffers().entries();
        const auto found = std::ranges::find(mine, name, &BufferStorage::Entry::full_name);
        ASSERT_NE(found, mine.end()) << name;
        if (b.dtype == DType::f32) {
          EXPECT_EQ(rig.values(found->buffer->data), rig.values(b.data));
        }
      });
    });
  }
}

// For who loads a checkpoint next: no values are drawn.
TEST(C5Deferred, ZerosTakeThePlaceOfInitializers) {
  for (const bool syncs : {false, true}) {
    for (const int ranks : {1, 2, 3}) {
      run_local_ranks(ranks, [&](auto world) {
        RankRig rig(std::move(world));
        Options options;
        options.sync_module_states = syncs;
        auto model = make_nested(rig, options);
        root_of(*model).initialize({.seed = 9, .zeros = true});
        for (const auto& [name, values] : whole_values(rig, *model)) EXPECT_EQ(values, std::vector<float>(values.size())) << name;
      });
    }
  }
}

// C5: the user's function takes precedence, sees every module, outer ones first, and sets their own tensors; units from
// the inside out, and it does not go from a unit into the units inside (those have their turn once).
TEST(C5Deferred, AFunctionTakesPrecedenceAndSeesEveryModuleTopDown) {
  for (const int ranks : {1, 2, 3}) {
    run_local_ranks(ranks, [](auto world) {
      RankRig rig(std::move(world));
      auto model = make_nested(rig);
      std::vector<std::string> seen;
      root_of(*model).initialize({.function = [&](ModuleInit& init) {
        seen.push_back(init.full_name());
        count_up(init);
      }});
      EXPECT_EQ(seen, (std::vector<std::string>{"1", "1.norm", "1.out", "", "0"}));
      const auto values = whole_values(rig, *model);
      const auto counted = [](float from, std::size_t n) {
        std::vector<float> v(n);
        std::iota(v.begin(), v.end(), from);
        return v;
      };
      EXPECT_EQ(values.at("0.weight"), counted(0, 15));
      EXPECT_EQ(values.at("0.bias"), counted(100, 5));
      EXPECT_EQ(values.at("1.norm.weight"), counted(0, 5));
      EXPECT_EQ(values.at("1.out.weight"), counted(0, 10));
      model->for_each_buffer([&](const std::string& name, nn::ModuleBuffer& b) {
        if (b.dtype == DType::f32) {
          EXPECT_EQ(rig.values(b.data), std::vector<float>(5, -1)) << name;
        } else {
          EXPECT_EQ(*b.data.as<std::int64_t>(), -1) << name;
        }
      });
    });
  }
}

// C5: fill_default() in a function gives what no function would have given.
TEST(C5Deferred, AFunctionMayFallBackToTheDefault) {
  run_local_ranks(3, [](auto world) {
    RankRig rig(std::move(world));
    auto model = make_nested(rig);
    root_of(*model).initialize(5);
    const auto expected = whole_values(rig, *model);
    root_of(*model).initialize({.seed = 5, .function = [](ModuleInit& init) { init.fill_default(); }});
    EXPECT_EQ(whole_values(rig, *model), expected);
  });
}

// C5: each module sets only its own direct tensors.
TEST(C5Deferred, AModuleSetsItsOwnTensorsOnly) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    auto model = make_chain({3, 5});
    fully_shard(*model, rig.device_mesh(), {});
    nn::Parameter& weight = *model->children()[0].module->own_parameters()[0];
    const std::string text =
        error_of<Error>([&] { root_of(*model).initialize({.function = [&](ModuleInit& init) { static_cast<void>(init.data(weight)); }}); });
    EXPECT_NE(text.find("'weight' does not belong to this module itself"), std::string::npos) << text;
    EXPECT_NE(text.find("of type sequential"), std::string::npos) << text;
  });
}

// C5: a failure names the module type, on all ranks, whichever rank it happened on.
TEST(C5Deferred, AFailureNamesTheModuleType) {
  run_local_ranks(3, [](auto world) {
    RankRig rig(std::move(world));
    auto model = make_nested(rig);
    const std::string text = error_of<Error>([&] {
      root_of(*model).initialize({.function = [&](ModuleInit& init) {
        init.fill_default();
        require(init.full_name() != "1.norm" || rig.rank() != 1, "no such file");
      }});
    });
    EXPECT_EQ(text, "rank 1: initialising module 1.norm of type norm_like failed: no such file");
  });
}

// C5: a parameter left without data is named.
TEST(C5Deferred, AParameterLeftWithoutDataIsNamed) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    auto model = make_nested(rig);
    const std::string text = error_of<ConfigError>([&] {
      root_of(*model).initialize({.function = [&](ModuleInit& init) {
        if (init.full_name() != "1.out") return init.fill_default();
        static_cast<void>(init.data(*init.module().own_parameters()[0]));
      }});
    });
    EXPECT_NE(text.find("parameter 1.out.bias [2] of a 'linear' was left without data"), std::string::npos) << text;
  });
}

// C5: a model larger than a rank's memory. 8 units of 1001 elements on 4 ranks, 251 each; a rank holds its shards and
// one unit at a time, where the model has 8 * 1001.
TEST(C5Deferred, PeakIsShardsAndOneUnit) {
  run_local_ranks(4, [](auto world) {
    RankRig rig(std::move(world));
    nn::Sequential model;
    for (int i = 0; i < 8; ++i) {
      auto& layer = model.add<nn::Linear>(std::to_string(i), 143, 7, nn::LinearOptions{.bias = false});
      fully_shard(layer, rig.device_mesh(), {});
    }
    fully_shard(model, rig.device_mesh(), {});
    const std::int64_t before = rig.pool().stats().current;
    rig.pool().reset_peak();
    root_of(model).initialize({.function = count_up});
    EXPECT_EQ(rig.pool().stats().current - before, 8 * 251 * 4);
    // Unit by unit, so the last unit's whole parameter is there when 8 shards are.
    EXPECT_EQ(rig.pool().stats().peak - before, (8 * 251 + 1001) * 4);
    // Without a function there is nothing but shards.
    auto other = make_chain({143, 7});
    fully_shard(*other, rig.device_mesh(), {});
    const std::int64_t start = rig.pool().stats().current;
    rig.pool().reset_peak();
    root_of(*other).initialize(1);
    EXPECT_EQ(rig.pool().stats().peak - start, root_of(*other).units()[0]->storage()->layout().shard_numel() * 4);
  });
}

// C5, C4: per-parameter mode shards parameters that have no data yet, and allocates only the shards: 7 rows of 143 over
// 4 ranks, 2 each.
TEST(C5Deferred, PerParameterModeAllocatesOnlyTheShard) {
  run_local_ranks(4, [](auto world) {
    RankRig rig(std::move(world));
    auto model = make_chain({143, 7});
    fully_shard(*model, rig.device_mesh(), {.sharding = Sharding::per_parameter});
    rig.pool().reset_peak();
    const std::int64_t before = rig.pool().stats().current;
    root_of(*model).initialize(1);
    EXPECT_EQ(rig.pool().stats().peak - before, (2 * 143 + 2) * 4);
    root_of(*model).initialize({.function = count_up});
    EXPECT_EQ(whole_values(rig, *model).at("0.bias"), (std::vector<float>{100, 101, 102, 103, 104, 105, 106}));
  });
}

// C5, B5: a tied embedding belongs to the root unit while its owner is a module of an inner unit.
TEST(C5Deferred, ATiedEmbedding) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    nn::Gpt2 model({.layers = 1, .heads = 1, .width = 4, .context = 4, .vocab_size = 7, .tie_embeddings = true});
    Root& root = auto_wrap(model, rig.device_mesh(), {}, wrap_types({"embedding", "gpt2_block"}));
    int embeddings = 0;
    root.initialize({.function = [&](ModuleInit& init) {
      if (init.module().type_name() != "embedding") return init.fill_default();
      ++embeddings;
      count_up(init);
    }});
    EXPECT_EQ(embeddings, 1);
    std::vector<float> expected(28);
    std::iota(expected.begin(), expected.end(), 0.0F);
    EXPECT_EQ(whole_values(rig, model).at("transformer.wte.weight"), expected);
  });
}

// C5: what has data already is taken over as it is, and the function is not asked for units that need nothing.
// D6: the master is fp32 whatever dtype it came in.
TEST(C5Deferred, GivenDataIsTakenOver) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    run_local_ranks(3, [&](auto world) {
      RankRig rig(std::move(world));
      auto model = make_nested(rig);
      std::map<std::string, std::vector<float>> given;
      auto& norm = dynamic_cast<NormLike&>(*model->children()[1].module->children()[0].module);
      std::vector<float> mean;
      {
        rig.context().seed = 3;
        const nn::PlainParameters storage(*model, rig.context(), dtype);
        model->for_each_parameter([&](const std::string& name, nn::Parameter& p) { given[name] = rig.values(p.data); });
        mean = rig.values(norm.mean().data);
        root_of(*model).initialize({.seed = 4, .function = [](ModuleInit&) { ADD_FAILURE() << "nothing lacks data"; }});
      }  // the model has storage of its own now
      EXPECT_EQ(rig.values(norm.mean().data), mean);
      EXPECT_EQ(whole_values(rig, *model), given);
      for (const Unit* unit : root_of(*model).units()) EXPECT_EQ(unit->storage()->master().dtype, DType::f32);
    });
  }
}

TEST(C5Deferred, GivenDataOfAnotherShapeIsRefused) {
  run_local_ranks(1, [](auto world) {
    RankRig rig(std::move(world));
    auto model = make_chain({3, 5});
    fully_shard(*model, rig.device_mesh(), {});
    float values[4] = {};
    model->children()[0].module->own_parameters()[1]->data = {values, Shape{4}, DType::f32};
    const std::string text = error_of<ConfigError>([&] { root_of(*model).initialize(1); });
    EXPECT_NE(text.find("parameter 0.bias has data of shape [4]"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace mica::fsdp::testing
