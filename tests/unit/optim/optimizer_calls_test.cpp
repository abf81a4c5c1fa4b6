// SPDX-License-Identifier: Apache-2.0
// What optimizers ask of the kernels, and what they refuse.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/device/forwarding_stream.hpp"
#include "mica/optim/clip_grad_norm.hpp"

#include "unit/optim/stepped_weights.hpp"

namespace mica::optim {
namespace {

using namespace steps;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

/// Of tasks by name, and of the arrays that they write.
struct Counts {
  std::map<std::string, int> tasks;
  std::map<std::string, std::int64_t> written;
};

class CountingStream final : public ForwardingStream {
 public:
  CountingStream(std::unique_ptr<Stream> inner, Counts& counts) : ForwardingStream(std::move(inner)), counts_(counts) {}
  void submit(const char* what, std::span<const Access> accesses, Task task) override {
    ++counts_.tasks[what];
    counts_.written[what] += std::ranges::count(accesses, Access::Mode::write, &Access::mode);
    ForwardingStream::submit(what, accesses, std::move(task));
  }

 private:
  Counts& counts_;
};

TEST(Optimizer, AllRunsAreOneKernelCallAndNeighboursThatDecayAlikeOneRun) {
  run_local_ranks(1, [](auto world) {
    Counts counts;
    const auto make_stream = [&](std::string name, StreamMode mode) -> std::unique_ptr<Stream> {
      return std::make_unique<CountingStream>(make_cpu_stream(std::move(name), mode), counts);
    };
    // Without gaps: decay no, no, yes, yes, no. With a gap behind "f" (5 elements).
    ShardedWeights model(
        std::move(world),
        {{weight("a", 64, false), weight("b", 128, false), weight("c", 64, true), weight("d", 64, true), weight("e", 3, false)},
         {weight("f", 5, false), weight("g", 7, false)}},
        {.make_stream = make_stream});
    const auto adamw = make_adamw(model.root(), {});
    train_step(model, *adamw, 1);
    constexpr int kArrays = 3;  // of a run: the parameter and two moments
    EXPECT_EQ(counts.tasks["adamw"], 1);
    EXPECT_EQ(counts.written["adamw"], (3 + 2) * kArrays);
    const auto no_decay = make_adamw(model.root(), {.weight_decay = 0});
    counts = {};
    train_step(model, *no_decay, 1);
    EXPECT_EQ(counts.tasks["adamw"], 1);
    EXPECT_EQ(counts.written["adamw"], (1 + 2) * kArrays);
    set_grads(model, 1);
    model.pass();
    counts = {};
    static_cast<void>(clip_coefficient(model.root(), 1));
    EXPECT_EQ(counts.tasks["power_sum"], 1 + 2);
  });
}

TEST(Optimizer, ScalesGradientsByADeviceValue) {
  for (const auto& [name, make] : all_optimizers()) {
    run_local_ranks(1, [&, &name = name, &make = make](auto world) {
      const auto own_world = world->duplicate("own");
      ShardedWeights scaled(own_world->duplicate("a"), odd_units()), plain(own_world->duplicate("b"), odd_units());
      const auto scaled_optimizer = make(scaled.root()), plain_optimizer = make(plain.root());
      const float quarter = 0.25F;
      for (int t = 1; t <= 2; ++t) {
        train_step(scaled, *scaled_optimizer, t, {.lr = 0.1, .grad_scale = ConstTensorView(&quarter, Shape{1}, DType::f32)});
        set_grads(plain, t);
        for (test::Weights* part : plain.model().parts()) {
          for (auto& w : part->weights()) {
            for (float& g : w.grad) g *= 0.25F;
          }
        }
        plain.pass();
        plain_optimizer->step({.lr = 0.1});
        plain.root().zero_grad();
      }
      EXPECT_TRUE(same_bits(snapshot(scaled, *scaled_optimizer), snapshot(plain, *plain_optimizer))) << name;
    });
  }
}

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Optimizer, RefusesToStepInsideAPass) {
  run_local_ranks(1, [](auto world) {
    ShardedWeights model(std::move(world), odd_units());
    const auto optimizer = make_sgd(model.root(), {});
    set_grads(model, 1);
    {
      fsdp::BackwardPass pass(model.root());
      EXPECT_THAT(error_of([&] { optimizer->step({.lr = 1}); }), HasSubstr("in backward"));
      EXPECT_THAT(error_of([&] { clip_grad_norm(model.root(), 1); }), HasSubstr("in backward"));
      pass.finish();
    }
    EXPECT_EQ(error_of([&] { optimizer->step({.lr = 1}); }), "");
  });
}

TEST(Optimizer, RefusesOptionsThatMakeNoSense) {
  run_local_ranks(1, [](auto world) {
    ShardedWeights model(std::move(world), odd_units());
    fsdp::Root& root = model.root();
    const auto adamw = [&](AdamWOptions options) { return error_of([&] { static_cast<void>(make_adamw(root, options)); }); };
    const auto sgd = [&](SgdOptions options) { return error_of([&] { static_cast<void>(make_sgd(root, options)); }); };
    EXPECT_EQ(adamw({}), "");
    EXPECT_THAT(adamw({.beta1 = 1}), HasSubstr("optim.beta1 is 1"));
    EXPECT_THAT(adamw({.beta2 = -0.1}), HasSubstr("optim.beta2 is -0.1"));
    EXPECT_THAT(adamw({.beta2 = NAN}), HasSubstr("optim.beta2 is nan"));
    EXPECT_THAT(adamw({.eps = 0}), HasSubstr("optim.eps is 0"));
    EXPECT_THAT(adamw({.eps = 1e-60}), HasSubstr("optim.eps is 1e-60"));
    EXPECT_THAT(adamw({.weight_decay = -1}), HasSubstr("optim.weight_decay is -1"));
    EXPECT_THAT(sgd({.momentum = 1.5}), HasSubstr("optim.momentum is 1.5"));
    EXPECT_THAT(sgd({.dampening = -1}), HasSubstr("optim.dampening is -1"));
    EXPECT_THAT(sgd({.weight_decay = NAN}), HasSubstr("optim.weight_decay is nan"));
    EXPECT_THAT(sgd({.nesterov = true}), HasSubstr("optim.nesterov needs momentum > 0"));
    const auto optimizer = make_sgd(root, {.momentum = 0.9, .dampening = 0.1});
    EXPECT_THAT(error_of([&] { optimizer->step({.lr = NAN}); }), HasSubstr("the learning rate is nan"));
    EXPECT_THAT(error_of([&] { optimizer->step({.lr = -1}); }), HasSubstr("the learning rate is -1"));
    const float skip = 0;
    EXPECT_THAT(error_of([&] { optimizer->step({.lr = 1, .skip = ConstTensorView(&skip, Shape{1}, DType::f32)}); }),
                HasSubstr("optim.dampening 0.1"));
  });
}

}  // namespace
}  // namespace mica::optim
