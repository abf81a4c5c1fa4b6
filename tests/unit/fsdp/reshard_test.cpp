// SPDX-License-Identifier: Apache-2.0
// What is unsharded when masters are about to be written.
#include <gtest/gtest.h>

#include "mica/fsdp/fully_shard.hpp"

#include "testing/checking_stream.hpp"
#include "testing/local_group.hpp"

namespace mica::fsdp {
namespace {

/// y = weight.
class ReshardLayer final : public nn::Module {
 public:
  ReshardLayer() : Module("layer"), weight_(add_parameter("weight", Shape{5}, nn::Initializer::ones(), true)) {}

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors, nn::Record* record) override {
    Tensor y = context.make(weight_.shape, DType::f32);
    context.kernels.copy(context.compute, data_of(weight_), y);
    y.needs_grad = record != nullptr;
    return nn::list_of(std::move(y));
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record&, nn::Tensors) override {
    context.kernels.fill(context.compute, weight_.write_grad().view, 1.0);
    return nn::Tensors(1);
  }

 private:
  nn::Parameter& weight_;
};

/// Layers side by side, some of which may be left out. A weight of its own.
class ReshardModel final : public nn::Module {
 public:
  explicit ReshardModel(int num_layers) : Module("model"), weight_(add_parameter("weight", Shape{3}, nn::Initializer::ones(), true)) {
    for (int i = 0; i < num_layers; ++i) layers_.push_back(&add_child<ReshardLayer>(std::string(1, static_cast<char>('a' + i))));
    runs_.assign(layers_.size(), true);
  }
  [[nodiscard]] const std::vector<ReshardLayer*>& layers() const { return layers_; }
  void leave_out(std::size_t layer) { runs_[layer] = false; }

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record* record) override {
    nn::Tensors ys;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      nn::Record* child = nn::child_record(record);
      ys.push_back(runs_[i] ? layers_[i]->forward(context, xs, child).front() : Tensor());
    }
    Tensor own = context.make(weight_.shape, DType::f32);
    context.kernels.copy(context.compute, data_of(weight_), own);
    own.needs_grad = record != nullptr;
    ys.push_back(std::move(own));
    return ys;
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) override {
    context.kernels.fill(context.compute, weight_.write_grad().view, 1.0);
    for (std::size_t i = layers_.size(); i-- > 0;) {
      if (runs_[i]) layers_[i]->backward(context, std::move(record.child(i)), nn::list_of(dys[i]));
    }
    return nn::Tensors(1);
  }

 private:
  nn::Parameter& weight_;
  std::vector<ReshardLayer*> layers_;
  std::vector<bool> runs_;
};

/// One of two ranks.
class Rank {
 public:
  Rank(std::unique_ptr<ProcessGroup> world, const Options& options, const Streams::Make& make_stream = make_cpu_stream)
      : pool_(make_cpu_pool()),
        kernels_(make_cpu_kernels(*pool_)),
        mesh_(std::move(world), {.world_size = 2, .shard_size = 2, .replicas = 1}),
        device_mesh_(mesh_, *pool_, *kernels_, Streams::make(StreamMode::threaded, make_stream)),
        model_(std::make_unique<ReshardModel>(2)),
        context_{.compute = device_mesh_.compute(), .pool = *pool_, .kernels = *kernels_} {
    for (ReshardLayer* layer : model_->layers()) fully_shard(*layer, device_mesh_, options);
    fully_shard(*model_, device_mesh_, options);
    root().initialize(1);
  }
  ~Rank() { device_mesh_.compute().synchronize(); }

  Root& root() { return root_of(*model_); }
  ReshardModel& model() { return *model_; }
  nn::Tensors forward(nn::Record* record) { return model_->forward(context_, {Tensor()}, record); }
  void train_pass() {
    nn::Record record;
    const nn::Tensors ys = forward(&record);
    backward(std::move(record), ys);
  }
  void backward(nn::Record record, const nn::Tensors& dys) { model_->backward(context_, std::move(record), dys); }
  /// As an optimizer does, on compute.
  void write_masters(double value) {
    for (const Unit* unit : root().units()) kernels_->fill(device_mesh_.compute(), unit->storage()->write_master(), value);
  }
  float first_of(const Tensor& y) {
    device_mesh_.compute().synchronize();
    return *y.view().as<float>();
  }

 private:
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Kernels> kernels_;
  Mesh mesh_;
  DeviceMesh device_mesh_;
  std::unique_ptr<ReshardModel> model_;
  nn::Context context_;
};

TEST(Reshard, AForwardWithoutBackwardDoesNotKeepOldParameters) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    run_local_ranks(2, [&](auto world) {
      Rank rank(std::move(world), {.strategy = strategy});
      {
        nn::Record record;
        EXPECT_EQ(rank.first_of(rank.forward(&record)[0]), 1);
      }
      rank.root().reshard();
      rank.write_masters(2);
      const nn::Tensors ys = rank.forward(nullptr);
      for (const Tensor& y : ys) EXPECT_EQ(rank.first_of(y), 2) << strategy_name(strategy);
    });
  }
}

TEST(Reshard, MastersOfAnUnshardedUnitAreNotWritten) {
  run_local_ranks(2, [](auto world) {
    Rank rank(std::move(world), {});
    Unit& unit = *rank.root().units()[1];
    unit.unshard().wait();
    EXPECT_THROW(static_cast<void>(unit.storage()->write_master()), Error);
    unit.reshard();
    EXPECT_EQ(unit.storage()->write_master().data, unit.storage()->master().data);
  });
}

// The second forward leaves out layer b, which forward prefetch has gathered: nobody waits for that gather.
TEST(Reshard, APrefetchThatNobodyUsedIsOverBeforeMastersAreWritten) {
  run_local_ranks(2, [](auto world) {
    HappensBeforeChecker checker;
    {
      Rank rank(std::move(world), {.forward_prefetch = true},
                [&](std::string name, StreamMode mode) { return checker.wrap(make_cpu_stream(std::move(name), mode)); });
      rank.train_pass();
      rank.root().zero_grad();
      rank.model().leave_out(1);
      rank.train_pass();
      rank.write_masters(2);
      rank.root().zero_grad();
      // The same in an evaluation, which no backward ends.
      static_cast<void>(rank.forward(nullptr));
      rank.root().reshard();
      rank.write_masters(3);
    }
    for (const auto& violation : checker.violations()) ADD_FAILURE() << violation.text;
  });
}

// Two forwards, then a step between their backwards: the second backward gathers what the step has written.
TEST(Reshard, ABackwardAfterAStepWaitsForTheMasters) {
  for (const BackwardPrefetch prefetch : {BackwardPrefetch::pre, BackwardPrefetch::post, BackwardPrefetch::none}) {
    run_local_ranks(2, [&](auto world) {
      HappensBeforeChecker checker;
      {
        Rank rank(std::move(world), {.backward_prefetch = prefetch},
                  [&](std::string name, StreamMode mode) { return checker.wrap(make_cpu_stream(std::move(name), mode)); });
        nn::Record first, second;
        const nn::Tensors ys = rank.forward(&first), more_ys = rank.forward(&second);
        rank.backward(std::move(first), ys);
        rank.root().reshard();
        rank.write_masters(2);
        rank.root().zero_grad();
        rank.backward(std::move(second), more_ys);
      }
      for (const auto& violation : checker.violations()) ADD_FAILURE() << violation.text;
    });
  }
}

TEST(Reshard, IsRefusedInsideAPass) {
  run_local_ranks(2, [](auto world) {
    Rank rank(std::move(world), {});
    rank.train_pass();
    BackwardPass pass(rank.root());
    EXPECT_THROW(rank.root().reshard(), Error);
    pass.finish();
  });
}

}  // namespace
}  // namespace mica::fsdp
