// SPDX-License-Identifier: Apache-2.0
// Which unit is gathered when, seen from outside: the collectives of a group that records them, between the backwards.
#include "mica/fsdp/prefetch.hpp"

#include <functional>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/comm/fake_group.hpp"
#include "mica/fsdp/fully_shard.hpp"

namespace mica::fsdp {
namespace {

using ::testing::ElementsAre;

/// y = x * 1, with a parameter, writing down when it runs.
class Layer final : public nn::Module {
 public:
  Layer(std::string name, FakeRecorder& log) : Module("layer"), name_(std::move(name)), log_(log) {
    weight_ = &add_parameter("weight", Shape{4}, nn::Initializer::ones(), true);
  }

 protected:
  nn::Tensors do_forward(nn::Context&, nn::Tensors xs, nn::Record*) override {
    note("forward");
    xs[0].needs_grad = true;
    return xs;
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record&, nn::Tensors dys) override {
    note("backward");
    context.kernels.fill(context.compute, weight_->write_grad().view, 1.0);
    return dys;
  }

 private:
  void note(const char* what) { log_.calls.push_back({Collective::barrier, fmt::format("{} {}", what, name_), 0, ""}); }
  std::string name_;
  FakeRecorder& log_;
  nn::Parameter* weight_;
};

/// Layers a, b, c one behind the other, and a weight of its own.
class Model final : public nn::Module {
 public:
  explicit Model(FakeRecorder& log) : Module("model"), log_(log) {
    weight_ = &add_parameter("weight", Shape{4}, nn::Initializer::ones(), true);
    for (const char* name : {"a", "b", "c"}) layers_.push_back(&add_child<Layer>(name, name, log));
  }
  [[nodiscard]] const std::vector<Layer*>& layers() const { return layers_; }

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record* record) override {
    for (Layer* layer : layers_) xs = layer->forward(context, xs, nn::child_record(record));
    return xs;
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) override {
    log_.calls.push_back({Collective::barrier, "backward root", 0, ""});
    context.kernels.fill(context.compute, weight_->write_grad().view, 1.0);
    for (std::size_t i = layers_.size(); i-- > 0;) {
      dys = layers_[i]->backward(context, std::move(record.child(i)), dys);
    }
    return dys;
  }

 private:
  FakeRecorder& log_;
  nn::Parameter* weight_;
  std::vector<Layer*> layers_;
};

/// What happens in the third of three steps, in host order.
/// @param of_b  of layer b, where it has its own.   @param prepare  before the first step.
/// @param abandoned  given: before the third step there is a forward that fills it, and that is given up.
std::vector<std::string> events(const Options& options, const std::optional<Options>& of_b = {},
                                const std::function<void(const std::vector<Unit*>&)>& prepare = {}, nn::Record* abandoned = nullptr) {
  FakeRecorder log;
  const std::unique_ptr<Pool> pool = make_cpu_pool();
  const std::unique_ptr<Kernels> kernels = make_reference_kernels(*pool);
  Mesh mesh(make_fake_group(0, 2, &log), {.world_size = 2, .shard_size = 2, .replicas = 1});
  DeviceMesh device_mesh(mesh, *pool, *kernels, Streams::make(StreamMode::inlined));
  Model model(log);
  std::vector<Unit*> units;
  for (Layer* layer : model.layers()) {
    units.push_back(&fully_shard(*layer, device_mesh, of_b && layer == model.layers()[1] ? *of_b : options));
  }
  fully_shard(model, device_mesh, options);
  if (prepare) prepare(units);
  root_of(model).initialize(1);
  nn::Context context{.compute = device_mesh.compute(), .pool = *pool, .kernels = *kernels};
  std::vector<std::string> found;
  for (int step = 1; step <= 3; ++step) {
    const Tensor x = context.make({1}, DType::f32);
    if (step == 3 && abandoned != nullptr) {
      (void)model.forward(context, {x}, abandoned);
      root_of(model).abandon_step();
    }
    log.calls.clear();
    nn::Record record;
    const nn::Tensors ys = model.forward(context, {x}, &record);
    model.backward(context, std::move(record), ys);
    root_of(model).zero_grad();
  }
  for (const FakeCall& call : log.calls) {
    if (call.kind == Collective::all_gather) found.push_back("gather " + call.label);
    if (call.kind == Collective::reduce_scatter) found.push_back("reduce " + call.label);
    if (call.kind == Collective::barrier) found.push_back(call.label);
  }
  return found;
}

TEST(Prefetch, NoneGathersEachUnitWhenItIsNeeded) {
  EXPECT_THAT(events({.backward_prefetch = BackwardPrefetch::none}),
              ElementsAre("gather root", "gather a", "forward a", "gather b", "forward b", "gather c", "forward c",  //
                          "backward root", "gather c", "backward c", "reduce c", "gather b", "backward b", "reduce b", "gather a",
                          "backward a", "reduce a", "reduce root"));
}

// The Records of a step that was given up may live on: its units are not waiting for their backward any more.
TEST(Prefetch, WhatAnAbandonedStepLeftDelaysNothing) {
  nn::Record held;
  EXPECT_EQ(events({.backward_prefetch = BackwardPrefetch::none}, {}, {}, &held), events({.backward_prefetch = BackwardPrefetch::none}));
}

TEST(Prefetch, PreGathersTheNextUnitBeforeTheBackwardOfThisOne) {
  EXPECT_THAT(events({.backward_prefetch = BackwardPrefetch::pre}),
              ElementsAre("gather root", "gather a", "forward a", "gather b", "forward b", "gather c", "forward c",  //
                          "gather c", "backward root", "gather b", "backward c", "reduce c", "gather a", "backward b", "reduce b",
                          "backward a", "reduce a", "reduce root"));
}

TEST(Prefetch, PostGathersTheNextUnitBeforeTheReductionOfThisOne) {
  EXPECT_THAT(events({.backward_prefetch = BackwardPrefetch::post}),
              ElementsAre("gather root", "gather a", "forward a", "gather b", "forward b", "gather c", "forward c",  //
                          "backward root", "gather c", "backward c", "gather b", "reduce c", "backward b", "gather a", "reduce b",
                          "backward a", "reduce a", "reduce root"));
}

TEST(Prefetch, ForwardGathersTheNextUnitOfTheFirstForward) {
  EXPECT_THAT(events({.backward_prefetch = BackwardPrefetch::none, .forward_prefetch = true}),
              ElementsAre("gather root", "gather a", "gather b", "forward a", "gather c", "forward b", "forward c",  //
                          "backward root", "gather c", "backward c", "reduce c", "gather b", "backward b", "reduce b", "gather a",
                          "backward a", "reduce a", "reduce root"));
}

TEST(Prefetch, AKeptUnitIsNotGatheredAgain) {
  EXPECT_THAT(events({.strategy = Strategy::shard_grad_op, .backward_prefetch = BackwardPrefetch::pre}),
              ElementsAre("gather root", "gather a", "forward a", "gather b", "forward b", "gather c", "forward c",  //
                          "backward root", "backward c", "reduce c", "backward b", "reduce b", "backward a", "reduce a", "reduce root"));
}

// D2: prefetch is each unit's own.
TEST(Prefetch, D2_AUnitWithNonePrefetchesNothingUnderARootWithPre) {
  EXPECT_THAT(events({.backward_prefetch = BackwardPrefetch::pre}, Options{.backward_prefetch = BackwardPrefetch::none}),
              ElementsAre("gather root", "gather a", "forward a", "gather b", "forward b", "gather c", "forward c",  //
                          "gather c", "backward root", "gather b", "backward c", "reduce c", "backward b", "reduce b", "gather a",
                          "backward a", "reduce a", "reduce root"));
  EXPECT_THAT(events({.backward_prefetch = BackwardPrefetch::none}, Options{.backward_prefetch = BackwardPrefetch::post}),
              ElementsAre("gather root", "gather a", "forward a", "gather b", "forward b", "gather c", "forward c",  //
                          "backward root", "gather c", "backward c", "reduce c", "gather b", "backward b", "gather a", "reduce b",
                          "backward a", "reduce a", "reduce root"));
}

// D2: a list is followed where the option alone would gather nothing.
TEST(Prefetch, D2_AListIsGatheredBeforeTheBackwardAlsoWithoutTheOption) {
  const auto lists = [](const std::vector<Unit*>& units) { units[2]->set_backward_prefetch({units[1], units[0]}); };
  EXPECT_THAT(events({.backward_prefetch = BackwardPrefetch::none}, {}, lists),
              ElementsAre("gather root", "gather a", "forward a", "gather b", "forward b", "gather c", "forward c",  //
                          "backward root", "gather c", "gather b", "gather a", "backward c", "reduce c", "backward b", "reduce b",
                          "backward a", "reduce a", "reduce root"));
}

}  // namespace
}  // namespace mica::fsdp
