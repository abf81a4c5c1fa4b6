// SPDX-License-Identifier: Apache-2.0
// docs/parity.md D6, the part about module buffers, and B7.
#include "norm_like.hpp"
#include "rank_rig.hpp"
#include "support/temporary_folder.hpp"

namespace mica::fsdp::testing {
namespace {

using mica::test::error_of;

Options with_dtypes(std::optional<DType> param_dtype, std::optional<DType> buffer_dtype) {
  Options options;
  options.mixed_precision = {.param_dtype = param_dtype, .buffer_dtype = buffer_dtype};
  return options;
}

/// NormLike a | unit { NormLike b | unit { NormLike c } }.
struct Norms {
  Norms(RankRig& rig, const Options& root, const Options& middle, const Options& innermost) : model("model") {
    a = &model.add<NormLike>("a", 4);
    auto& outer = model.add<nn::Sequential>("outer");
    b = &outer.add<NormLike>("b", 4);
    auto& inner = outer.add<nn::Sequential>("inner");
    c = &inner.add<NormLike>("c", 4);
    fully_shard(inner, rig.device_mesh(), innermost);
    fully_shard(outer, rig.device_mesh(), middle);
    fully_shard(model, rig.device_mesh(), root);
    root_of(model).initialize(1);
  }
  void forward(RankRig& rig, bool training = true) {
    Tensor x = rig.context().make({2, 4}, DType::f32);
    rig.kernels().fill(rig.compute(), x, 1.0);
    rig.context().training = training;
    static_cast<void>(model.forward(rig.context(), nn::list_of(std::move(x)), nullptr));
    rig.compute().synchronize();
  }
  nn::Sequential model;
  NormLike *a, *b, *c;
};

// D6: buffers are never sharded: whole on every rank, and kept from one forward to the next.
TEST(D6Buffers, AreWholeOnEveryRankAndKeepWhatForwardsWrite) {
  for (const int ranks : {1, 2, 3}) {
    run_local_ranks(ranks, [](auto world) {
      RankRig rig(std::move(world));
      Norms norms(rig, {}, {}, {});
      const std::vector<float> start = rig.values(norms.c->mean().data);
      EXPECT_EQ(start.size(), 4U);
      EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::module_buffer), 3 * (4 * 4 + 8));
      norms.forward(rig);
      norms.forward(rig);
      const std::vector<float> now = rig.values(norms.c->mean().data);
      for (std::size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(now[i], start[i] + 2);
      EXPECT_EQ(norms.c->mean().data.dtype, DType::f32);  // buffer_dtype unset: no cast
    });
  }
}

// D6: param, reduce and buffer dtypes apart; buffers are cast at the first forward and stay cast; integers never.
TEST(D6Buffers, AreCastAtTheFirstForwardAndStayCast) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    const Options options = with_dtypes(std::nullopt, DType::bf16);
    Norms norms(rig, options, options, options);
    EXPECT_EQ(norms.a->mean().data.dtype, DType::f32);
    norms.forward(rig);
    for (const NormLike* norm : {norms.a, norms.b, norms.c}) {
      EXPECT_EQ(norm->mean_seen, DType::bf16);
      EXPECT_EQ(norm->weight_seen, DType::f32);
      EXPECT_EQ(norm->batches_seen, DType::i64);
    }
    EXPECT_EQ(norms.a->mean().data.dtype, DType::bf16);
    const void* storage = norms.a->mean().data.data;
    norms.forward(rig);
    EXPECT_EQ(norms.a->mean().data.data, storage);
    EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::module_buffer), 3 * (4 * 2 + 8));
  });
}

// D6: the innermost owner's buffer_dtype wins, also when it is unset there.
TEST(D6Buffers, TheInnermostOwnersDtypeWins) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    Norms norms(rig, with_dtypes(std::nullopt, DType::bf16), with_dtypes(std::nullopt, DType::f16), {});
    norms.forward(rig);
    EXPECT_EQ(norms.a->mean_seen, DType::bf16);
    EXPECT_EQ(norms.b->mean_seen, DType::f16);
    EXPECT_EQ(norms.c->mean_seen, DType::f32);
  });
}

// D6: full precision in eval restores them; the next training forward casts back. Off by default.
TEST(D6Buffers, FullPrecisionInEvalRestoresThem) {
  for (const bool on : {false, true}) {
    run_local_ranks(2, [&](auto world) {
      RankRig rig(std::move(world));
      Options options = with_dtypes(DType::bf16, DType::bf16);
      if (on) options.root = RootOptions{.full_precision_in_eval = true};
      Norms norms(rig, options, options, options);
      norms.forward(rig);
      EXPECT_EQ(norms.b->mean_seen, DType::bf16);
      norms.forward(rig, false);
      EXPECT_EQ(norms.b->mean_seen, on ? DType::f32 : DType::bf16);
      norms.forward(rig);
      EXPECT_EQ(norms.b->mean_seen, DType::bf16);
    });
  }
}

// B7: a batch-norm-like module is excluded from mixed precision by a unit of its own.
TEST(B7BatchNormLike, IsExcludedFromMixedPrecisionByItsOwnUnit) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    const Options low = with_dtypes(DType::bf16, DType::bf16);
    Norms norms(rig, low, low, {});
    norms.forward(rig);
    EXPECT_EQ(norms.b->weight_seen, DType::bf16);
    EXPECT_EQ(norms.b->mean_seen, DType::bf16);
    EXPECT_EQ(norms.c->weight_seen, DType::f32);
    EXPECT_EQ(norms.c->mean_seen, DType::f32);
  });
}

/// A double-precision table.
class Table final : public nn::Module {
 public:
  Table() : Module("table") {
    add_parameter("weight", {3}, nn::Initializer::ones(), false);
    add_buffer("angles", {2}, DType::f64, nn::Initializer::zeros());
  }

 protected:
  nn::Tensors do_forward(nn::Context&, nn::Tensors xs, nn::Record*) override { return xs; }
  nn::Tensors do_backward(nn::Context&, nn::Record&, nn::Tensors dys) override { return dys; }
};

// D6: a cast that is not possible is refused by name; without buffer_dtype the buffer stays as it is.
TEST(D6Buffers, ACastThatIsNotPossibleIsRefused) {
  run_local_ranks(1, [](auto world) {
    RankRig rig(std::move(world));
    Table plain, cast;
    fully_shard(plain, rig.device_mesh(), {});
    root_of(plain).initialize(1);
    EXPECT_EQ(plain.own_buffers()[0]->data.dtype, DType::f64);
    fully_shard(cast, rig.device_mesh(), with_dtypes(std::nullopt, DType::bf16));
    const std::string text = error_of<ConfigError>([&] { static_cast<void>(root_of(cast)); });
    EXPECT_NE(text.find("buffer angles of dtype fp64 cannot be cast to buffer_dtype bf16"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace mica::fsdp::testing
