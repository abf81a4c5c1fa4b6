// SPDX-License-Identifier: Apache-2.0
#include "mica/optim/moment_precision.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/optim/optimizer_in_backward.hpp"
#include "mica/optim/state_dict.hpp"

#include "unit/optim/trained_state.hpp"

namespace mica::optim {
namespace {

namespace dicts = state_dicts;
using test::ShardedOptions;
using test::ShardedWeights;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MomentPrecisions : public ::testing::TestWithParam<MomentPrecision> {
 protected:
  [[nodiscard]] static std::unique_ptr<Optimizer> make(fsdp::Root& root) { return make_adamw(root, {.precision = GetParam()}); }
  [[nodiscard]] static std::int64_t bytes_per_moment() { return GetParam() == MomentPrecision::bf16 ? 2 : 1; }
};

/// Bytes of optimizer state of this rank.
std::int64_t state_bytes(ShardedWeights& model) {
  model.device_mesh().compute().synchronize();
  return model.pool().stats().current_of(MemoryRole::optimizer);
}

TEST_P(MomentPrecisions, TakeTheirBytes) {
  run_local_ranks(2, [](auto world) {
    ShardedWeights model(world->duplicate("adamw"), {{{"w", Shape{640}, true}}}), other(std::move(world), {{{"w", Shape{640}, true}}});
    const auto adamw = make(model.root());
    adamw->allocate_state();
    EXPECT_EQ(state_bytes(model), 2 * bytes_per_moment() * 320);
    const auto sgd = make_sgd(other.root(), {.momentum = 0.9, .precision = GetParam()});
    sgd->allocate_state();
    EXPECT_EQ(state_bytes(other), bytes_per_moment() * 320);
  });
}

/// State dicts are fp32, whatever the precision, and give the optimizer back the very bits that it had.
TEST_P(MomentPrecisions, StateDictsAreFp32AndExact) {
  for (const int ranks : {1, 3}) {
    OptimStateDict full;
    run_local_ranks(ranks, [&](auto world) {
      const int rank = world->rank();
      ShardedWeights model(world->duplicate("a"), dicts::units()), resumed(std::move(world), dicts::units());
      const auto optimizer = make(model.root()), loaded = make(resumed.root());
      for (int t = 1; t <= 2; ++t) dicts::train_step(model, *optimizer, t);
      for (const char* name : {"u0.a", "u0.b", "u1.c", "u1.d"}) resumed.write_master(name, model.gather(name));
      OptimStateDict whole = full_optim_state_dict(*optimizer);
      if (rank == 0) {
        EXPECT_EQ(whole.state.at("u0.a").tensors.at("exp_avg").dtype(), DType::f32);
        full = whole;
      }
      load_optim_state_dict(*loaded, scatter_full_optim_state_dict(rank == 0 ? &whole : nullptr, *loaded));
      for (std::size_t i = 0; i < optimizer->state().size(); ++i) {
        const TensorView a = optimizer->state()[i].data, b = loaded->state()[i].data;
        EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<std::size_t>(a.bytes())), 0) << optimizer->state()[i].kind;
      }
      dicts::train_step(model, *optimizer, 3);
      dicts::train_step(resumed, *loaded, 3);
      for (const char* name : {"u0.a", "u0.b", "u1.c", "u1.d"}) EXPECT_EQ(resumed.gather(name), model.gather(name)) << name;
      // A run in fp32 goes on from it, too.
      const auto wide = make_adamw(resumed.root(), {});
      load_optim_state_dict(*wide, local_optim_state_dict(*loaded));
      EXPECT_EQ(wide->state()[0].data.dtype, DType::f32);
    });
  }
}

/// Each unit stepped in backward, with a gradient and a stream of its own: the same bits.
TEST_P(MomentPrecisions, InBackwardIsTheSame) {
  run_local_ranks(2, [](auto world) {
    ShardedOptions options;
    options.fsdp.root = fsdp::RootOptions{.use_orig_params = true};
    ShardedWeights after(world->duplicate("after"), dicts::units(), options), within(std::move(world), dicts::units(), options);
    const auto optimizer = make(after.root()), stepped = make(within.root());
    OptimizerInBackward in_backward(*stepped);
    for (int t = 1; t <= 3; ++t) {
      dicts::train_step(after, *optimizer, t);
      dicts::set_grads(within, t);
      in_backward.begin_step(0.125);
      within.pass();
    }
    for (const char* name : {"u0.a", "u0.b", "u1.c"}) EXPECT_EQ(within.gather(name), after.gather(name)) << name;
  });
}

INSTANTIATE_TEST_SUITE_P(All, MomentPrecisions, ::testing::Values(MomentPrecision::bf16, MomentPrecision::int8),
                         [](const auto& p) { return std::string(moment_precision_name(p.param)); });

TEST(MomentPrecision, Names) {
  for (const char* name : {"fp32", "bf16", "int8"}) EXPECT_EQ(moment_precision_name(moment_precision_from_name(name)), name);
  EXPECT_THAT(dicts::error_of([] { static_cast<void>(moment_precision_from_name("fp16")); }),
              HasSubstr("optim.state_dtype is 'fp16', expected fp32"));
}

TEST(MomentPrecision, IsRefusedWhereThereIsNoState) {
  run_local_ranks(1, [](auto world) {
    ShardedWeights model(std::move(world), dicts::units());
    EXPECT_THAT(dicts::error_of([&] { static_cast<void>(make_sgd(model.root(), {.precision = MomentPrecision::bf16})); }),
                HasSubstr("optim.state_dtype is bf16, but sgd without momentum keeps no state"));
  });
}

// Rounded to 0, a second moment must not make a step large.
TEST(MomentPrecision, Int8RefusesAnEpsBelowItsSmallestNumber) {
  run_local_ranks(1, [](auto world) {
    ShardedWeights model(std::move(world), dicts::units());
    EXPECT_THAT(dicts::error_of([&] { static_cast<void>(make_adamw(model.root(), {.eps = 7e-9, .precision = MomentPrecision::int8})); }),
                HasSubstr("optim.eps is 7e-09, but optim.state_dtype = int8 needs at least 7.5e-9"));
    EXPECT_NE(make_adamw(model.root(), {.eps = 0x1p-27, .precision = MomentPrecision::int8}), nullptr);
  });
}

}  // namespace
}  // namespace mica::optim
