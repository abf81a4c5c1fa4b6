// SPDX-License-Identifier: Apache-2.0
// docs/parity.md B3 where C5, C6, E1 and E2 meet it: ignored modules and parameters stay with whoever holds them.
#include "mica/fsdp/state_dict.hpp"
#include "mica/fsdp/summon.hpp"

#include "norm_like.hpp"
#include "rank_rig.hpp"
#include "refusal.hpp"
#include "support/temporary_folder.hpp"

namespace mica::fsdp::testing {
namespace {

using mica::test::error_of;
using Values = std::vector<float>;

/// Linear(3 -> 5), a unit whose bias is ignored, NormLike(5), an ignored module, and Linear(5 -> 2). The test holds
/// what is ignored.
struct Ignoring {
  explicit Ignoring(RankRig& rig, Options options = {}) {
    linear = &model.add<nn::Linear>("0", 3, 5);
    norm = &model.add<NormLike>("norm", 5);
    model.add<nn::Linear>("2", 5, 2);
    Options own = options;
    own.ignored_parameters = {bias_parameter()};
    fully_shard(*linear, rig.device_mesh(), own);
    options.ignored_modules = {norm};
    fully_shard(model, rig.device_mesh(), options);
    bias_parameter()->data = {bias.data(), Shape{5}, DType::f32};
    norm_parameter()->data = {weight.data(), Shape{5}, DType::f32};
    norm->mean().data = {mean.data(), Shape{5}, DType::f32};
    norm->batches().data = {&batches, Shape{1}, DType::i64};
  }
  [[nodiscard]] nn::Parameter* bias_parameter() const { return linear->own_parameters()[1].get(); }
  [[nodiscard]] nn::Parameter* norm_parameter() const { return norm->own_parameters()[0].get(); }
  Root& root() { return root_of(model); }
  nn::Tensors forward(RankRig& rig) {
    Tensor x = rig.context().make({1, 3}, DType::f32);
    rig.kernels().fill(rig.compute(), x, 1.0);
    return model.forward(rig.context(), nn::list_of(std::move(x)), nullptr);
  }
  /// Nothing has moved.
  void expect_held() {
    EXPECT_EQ(bias_parameter()->data.data, bias.data());
    EXPECT_EQ(norm_parameter()->data.data, weight.data());
    EXPECT_EQ(norm->mean().data.data, mean.data());
    EXPECT_EQ(norm->batches().data.data, &batches);
  }
  void expect_values(float bias_value, float weight_value, float mean_value, std::int64_t batches_value) {
    expect_held();
    EXPECT_EQ(bias, Values(5, bias_value));
    EXPECT_EQ(weight, Values(5, weight_value));
    EXPECT_EQ(mean, Values(5, mean_value));
    EXPECT_EQ(batches, batches_value);
  }

  Values bias = Values(5, 2), weight = Values(5, 3), mean = Values(5, 4);
  std::int64_t batches = 5;
  nn::Sequential model;
  nn::Linear* linear = nullptr;
  NormLike* norm = nullptr;
};

// B3: the buffers of an ignored module are neither moved nor cast nor counted, and belong to nobody's BufferStorage.
TEST(B3Ignored, BuffersStayWithTheirHolder) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    Options options;
    options.mixed_precision.buffer_dtype = DType::bf16;
    Ignoring ignoring(rig, options);
    ignoring.root().initialize(1);
    EXPECT_TRUE(ignoring.root().buffers().entries().empty());
    static_cast<void>(ignoring.forward(rig));
    rig.compute().synchronize();
    EXPECT_EQ(ignoring.norm->mean_seen, DType::f32);
    EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::module_buffer), 0);
    ignoring.expect_values(2, 3, 5, 5);  // the module itself adds 1 to its mean
  });
}

// B3: who forgot one hears its name before anything runs.
TEST(B3Ignored, ABufferWithoutDataIsRefusedByName) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    Ignoring ignoring(rig);
    ignoring.root().initialize(1);
    ignoring.norm->mean().data = {};
    expect_refusal<Error>([&] { static_cast<void>(ignoring.forward(rig)); }, {"norm.running_mean", "[5]", "ignored"});
    EXPECT_EQ(ignoring.norm->mean_seen, DType::u8);
  });
}

// C5: neither the default nor a function initialises them; a function does not see ignored modules, and in others it
// may not touch ignored parameters.
TEST(B3Ignored, C5_InitialisationStopsAtThem) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    Ignoring ignoring(rig);
    ignoring.root().initialize(1);
    ignoring.expect_values(2, 3, 4, 5);
    std::vector<std::string> seen;
    ignoring.root().initialize({.function = [&](ModuleInit& init) {
      seen.push_back(init.full_name());
      init.fill_default();
    }});
    EXPECT_EQ(seen, (std::vector<std::string>{"0", "", "2"}));
    ignoring.expect_values(2, 3, 4, 5);
    const std::string text = error_of<Error>([&] {
      ignoring.root().initialize({.function = [&](ModuleInit& init) {
        for (const auto& parameter : init.module().own_parameters()) static_cast<void>(init.data(*parameter));
      }});
    });
    EXPECT_NE(text.find("'bias' is an ignored parameter"), std::string::npos) << text;
    ignoring.expect_values(2, 3, 4, 5);
  });
}

// C6: they are not sent.
TEST(B3Ignored, C6_SyncDoesNotSendThem) {
  run_local_ranks(4, [](auto world) {
    RankRig rig(std::move(world), 2);
    Options options{.strategy = Strategy::hybrid_shard};
    options.sync_module_states = true;
    Ignoring ignoring(rig, options);
    const auto mine = static_cast<float>(10 * rig.rank());
    for (Values* each : {&ignoring.bias, &ignoring.weight, &ignoring.mean}) each->assign(5, mine);
    ignoring.batches = rig.rank();
    ignoring.root().initialize(100 + static_cast<std::uint64_t>(rig.rank()));
    ignoring.expect_values(mine, mine, mine, rig.rank());
    // 0.weight alone has 60 bytes; 2.weight and 2.bias share a bucket, in slots of 64.
    for (ProcessGroup* group : {&rig.mesh().shard(), &rig.mesh().replicate()}) {
      EXPECT_EQ(group->counts().of(Collective::broadcast), 2);
      EXPECT_EQ(group->counts().bytes_of(Collective::broadcast), 60 + 2 * 64);
    }
  });
}

// E1: whole anyway, so edits persist even without write-back, on every rank its own; they stay when the scope ends.
TEST(B3Ignored, E1_SummonShowsTheHoldersStorage) {
  for (const bool write_back : {false, true}) {
    run_local_ranks(3, [&](auto world) {
      RankRig rig(std::move(world));
      Ignoring ignoring(rig);
      ignoring.root().initialize(1);
      const std::int64_t before = rig.pool().stats().current;
      {
        const SummonFullParams full(ignoring.model, {.write_back = write_back});
        ignoring.expect_values(2, 3, 4, 5);
        EXPECT_EQ(rig.pool().stats().current - before, (15 + 10 + 2) * 4);  // 0.weight, 2.weight, 2.bias
        std::ranges::fill(ignoring.bias, 20.0F + static_cast<float>(rig.rank()));
        ignoring.norm_parameter()->data.as<float>()[4] = 30;
      }
      ignoring.expect_held();
      EXPECT_EQ(ignoring.bias, Values(5, 20.0F + static_cast<float>(rig.rank())));
      EXPECT_EQ(ignoring.weight, (Values{3, 3, 3, 3, 30}));
    });
  }
}

// E2: every kind keeps them under their names, whole on every rank, as copies; loading writes to the holder's storage.
TEST(B3Ignored, E2_EveryStateDictKeepsThem) {
  for (const StateDictKind kind : {StateDictKind::full, StateDictKind::sharded, StateDictKind::local}) {
    run_local_ranks(3, [&](auto world) {
      RankRig rig(std::move(world));
      Ignoring ignoring(rig);
      ignoring.root().initialize(1);
      set_state_dict_settings(ignoring.model, StateDictSettings::of(kind));
      const StateDict dict = state_dict(ignoring.model);
      EXPECT_EQ(dict.size(), kind == StateDictKind::local ? 6U : 7U);
      EXPECT_EQ(dict.count(kind == StateDictKind::local ? "0.flat_param" : "0.weight"), 1U);
      for (const auto& [key, value] : {std::pair{"0.bias", 2.0F}, {"norm.weight", 3.0F}, {"norm.running_mean", 4.0F}}) {
        ASSERT_TRUE(dict.contains(key)) << key;
        EXPECT_TRUE(dict.at(key).is_whole()) << key;
        EXPECT_EQ(rig.values(dict.at(key).view()), Values(5, value)) << key;
      }
      EXPECT_EQ(*dict.at("norm.num_batches").view().as<std::int64_t>(), 5);
      for (Values* each : {&ignoring.bias, &ignoring.weight, &ignoring.mean}) each->assign(5, -1);
      ignoring.batches = -1;
      load_state_dict(ignoring.model, dict);
      ignoring.expect_values(2, 3, 4, 5);
      // Whoever has not given them data cannot save.
      ignoring.norm->mean().data = {};
      expect_refusal<ConfigError>([&] { static_cast<void>(state_dict(ignoring.model)); }, {"norm.running_mean", "no data"});
    });
  }
}

}  // namespace
}  // namespace mica::fsdp::testing
