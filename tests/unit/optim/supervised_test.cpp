// SPDX-License-Identifier: Apache-2.0
// Models of f32 features under sharding: a root casts features and float targets, and leaves classes alone.
#include <cmath>

#include <gtest/gtest.h>

#include "mica/fsdp/wrap_policy.hpp"
#include "mica/nn/activation.hpp"
#include "mica/nn/layer_norm.hpp"
#include "mica/nn/linear.hpp"
#include "mica/nn/losses.hpp"
#include "mica/nn/sequential.hpp"
#include "mica/nn/supervised_model.hpp"
#include "mica/optim/optimizer.hpp"

#include "testing/local_group.hpp"

namespace mica::optim {
namespace {

constexpr std::int64_t kSamples = 8, kFeatures = 6, kOutputs = 3, kWidth = 16;

template <class Loss>
class Perceptron final : public nn::SupervisedModel {
 public:
  Perceptron() : SupervisedModel("perceptron") {
    add_body<nn::Linear>("in", kFeatures, kWidth);
    add_body<nn::Tanh>("act");
    nn::Residual& block = add_body<nn::Residual>("block", "perceptron_block");
    block.add<nn::LayerNorm>("norm", kWidth);
    block.add<nn::Linear>("up", kWidth, 2 * kWidth);
    block.add<nn::Relu>("act");
    block.add<nn::Linear>("down", 2 * kWidth, kWidth);
    add_body<nn::Linear>("out", kWidth, kOutputs);
    set_head<Loss>("loss");
  }
};

/// Element i of fixed numbers from -1 to 1.
float number(std::int64_t i) { return static_cast<float>(std::sin(0.9 * static_cast<double>(i * i) + static_cast<double>(i))); }

/// The losses of rank 0 while all ranks learn the same few samples by heart.
template <class Loss>
std::vector<float> train(int num_ranks, DType param_dtype) {
  constexpr bool kHasClasses = std::is_same_v<Loss, nn::CrossEntropyLoss>;
  std::vector<float> losses;
  run_local_ranks(num_ranks, [&](auto world) {
    const auto pool = make_cpu_pool();
    const auto kernels = make_cpu_kernels(*pool);
    Mesh mesh(std::move(world), {.world_size = num_ranks, .shard_size = num_ranks, .replicas = 1});
    fsdp::DeviceMesh device_mesh(mesh, *pool, *kernels, fsdp::Streams::make(StreamMode::inlined));
    Perceptron<Loss> model;
    fsdp::Options options{.strategy = fsdp::Strategy::full_shard};
    options.mixed_precision.param_dtype = param_dtype;
    fsdp::Root& root = fsdp::auto_wrap(model, device_mesh, options, fsdp::wrap_types({"perceptron_block"}));
    root.initialize(3);
    const auto optimizer = make_adamw(root, {.weight_decay = 0});
    nn::Context context{.compute = device_mesh.compute(), .pool = *pool, .kernels = *kernels};

    std::vector<float> features, values;
    std::vector<std::int32_t> classes;
    for (std::int64_t i = 0; i < kSamples * kFeatures; ++i) features.push_back(number(i));
    for (std::int64_t i = 0; i < kSamples * kOutputs; ++i) values.push_back(number(1000 + i) > 0 ? 1.0F : 0.0F);
    for (std::int64_t i = 0; i < kSamples; ++i) classes.push_back(static_cast<std::int32_t>(i % kOutputs));
    const Tensor x(TensorView(features.data(), Shape{kSamples, kFeatures}, DType::f32));
    const Tensor targets(kHasClasses ? TensorView(classes.data(), Shape{kSamples}, DType::i32)
                                     : TensorView(values.data(), Shape{kSamples, kOutputs}, DType::f32));
    float one = 1;
    for (int step = 1; step <= 80; ++step) {
      context.step = static_cast<std::uint64_t>(step);
      nn::Record record;
      const nn::Tensors loss = model.forward(context, {x, targets}, &record);
      model.backward(context, std::move(record), {Tensor(TensorView(&one, Shape{1}, DType::f32))});
      optimizer->step({.lr = 0.02});
      root.zero_grad();
      context.compute.synchronize();
      if (mesh.rank() == 0) losses.push_back(*loss[0].view().as<float>());
    }
    const nn::Tensors predicted = model.forward(context, {x}, nullptr);
    context.compute.synchronize();
    EXPECT_EQ(predicted[0].dtype(), param_dtype);
    EXPECT_EQ(predicted[0].shape(), (Shape{kSamples, kOutputs}));
    EXPECT_EQ(features[1], number(1)) << "the caller's features were cast in place";
  });
  return losses;
}

template <class Loss>
void expect_learns() {
  const std::vector<float> plain = train<Loss>(1, DType::f32);
  ASSERT_EQ(plain.size(), 80U);
  EXPECT_LT(plain.back(), 0.5F * plain.front());
  const std::vector<float> sharded = train<Loss>(2, DType::f32);
  EXPECT_NEAR(sharded.front(), plain.front(), 1e-6F);
  EXPECT_NEAR(sharded.back(), plain.back(), 0.05F * plain.front());
  const std::vector<float> bf16 = train<Loss>(2, DType::bf16);
  EXPECT_NEAR(bf16.front(), plain.front(), 0.02F * plain.front());
  EXPECT_LT(bf16.back(), 0.5F * bf16.front());
}

TEST(SupervisedModels, OfClassesLearnSharded) { expect_learns<nn::CrossEntropyLoss>(); }

TEST(SupervisedModels, OfNumbersLearnSharded) { expect_learns<nn::MseLoss>(); }

TEST(SupervisedModels, OfProbabilitiesLearnSharded) { expect_learns<nn::BceWithLogitsLoss>(); }

}  // namespace
}  // namespace mica::optim
