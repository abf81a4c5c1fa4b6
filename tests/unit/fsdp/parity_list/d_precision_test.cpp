// SPDX-License-Identifier: Apache-2.0
// docs/parity.md D6 (casts of inputs, units of several dtypes, full precision in evaluation) and D9 (the offload tier).
#include <algorithm>

#include <gmock/gmock.h>

#include "mica/nn/models/gpt2.hpp"

#include "probe_model.hpp"
#include "support/temporary_folder.hpp"

namespace mica::fsdp::testing {
namespace {

Options with_dtype(std::optional<DType> param_dtype, bool cast_forward_inputs = false) {
  Options options;
  options.mixed_precision.param_dtype = param_dtype;
  options.mixed_precision.cast_forward_inputs = cast_forward_inputs;
  return options;
}

/// Passes its inputs on, keeping what it saw of them.
class Seen final : public nn::Module {
 public:
  Seen() : Module("seen") { add_parameter("weight", {2}, nn::Initializer::ones(), true); }
  std::vector<DType> dtypes;
  std::vector<bool> needs_grad;

 protected:
  nn::Tensors do_forward(nn::Context&, nn::Tensors xs, nn::Record*) override {
    for (const Tensor& x : xs) {
      dtypes.push_back(x.dtype());
      needs_grad.push_back(x.needs_grad);
    }
    return xs;
  }
  nn::Tensors do_backward(nn::Context&, nn::Record&, nn::Tensors dys) override { return dys; }
};

// D6: the root casts floating-point inputs only, never integers, and keeps their needs-gradient flag; unset: no cast.
TEST(D6Inputs, TheRootCastsFloatingPointInputs) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    for (const auto& [param_dtype, expected] :
         {std::pair{std::optional(DType::bf16), DType::bf16}, std::pair{std::optional<DType>(), DType::f32}}) {
      Seen model;
      fully_shard(model, rig.device_mesh(), with_dtype(param_dtype));
      root_of(model).initialize(1);
      Tensor wide = rig.context().make({3}, DType::f32);
      rig.kernels().fill(rig.compute(), wide, 0.5);
      Tensor wanted = wide;
      wanted.needs_grad = true;
      const Tensor ids = rig.context().make({3}, DType::i32);
      const nn::Tensors ys = model.forward(rig.context(), {wide, wanted, ids}, nullptr);
      EXPECT_THAT(model.dtypes, ::testing::ElementsAre(expected, expected, DType::i32));
      EXPECT_THAT(model.needs_grad, ::testing::ElementsAre(false, true, false));
      EXPECT_EQ(ys[2].view().data, ids.view().data);
      EXPECT_EQ(rig.values(ys[0]), std::vector<float>(3, 0.5F));
    }
  });
}

// D6: units of different dtypes in one model: with cast_forward_inputs each gets its own dtype, and gradients come back
// in the neighbour's; output_dtype casts what leaves.
TEST(D6Inputs, UnitsOfDifferentDtypes) {
  for (const int num_ranks : {1, 2}) {
    run_local_ranks(num_ranks, [](auto world) {
      RankRig rig(std::move(world));
      ProbeModel model(3);
      fully_shard(*model.layers[0], rig.device_mesh(), with_dtype(DType::bf16, true));
      fully_shard(*model.layers[1], rig.device_mesh(), with_dtype(std::nullopt, true));
      fully_shard(*model.layers[2], rig.device_mesh(), with_dtype(DType::f16, true));
      Options root = with_dtype(DType::bf16);
      root.mixed_precision.output_dtype = DType::f32;
      fully_shard(model, rig.device_mesh(), root);
      root_of(model).initialize(1);
      nn::Record record;
      Tensor x = input_of(rig.context());
      x.needs_grad = true;
      nn::Tensors ys = model.forward(rig.context(), {x}, &record);
      EXPECT_EQ(ys[0].dtype(), DType::f32);
      const nn::Tensors dxs = model.backward(rig.context(), std::move(record), std::move(ys));
      const std::vector<DType> expected{DType::bf16, DType::f32, DType::f16};
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(model.layers[i]->weight_seen, expected[i]) << i;
        EXPECT_EQ(model.layers[i]->x_seen, expected[i]) << i;
        EXPECT_EQ(model.layers[i]->dy_seen, expected[i]) << i;
      }
      ASSERT_TRUE(dxs[0]);
      EXPECT_EQ(dxs[0].dtype(), DType::f32);  // as the input came
      rig.compute().synchronize();
      for (const Piece& p : root_of(model).pieces()) {
        EXPECT_EQ(root_of(model).master(p).dtype, DType::f32);  // whatever param_dtype is
        for (std::int64_t i = 0; i < p.numel(); ++i) EXPECT_EQ(root_of(model).grad(p).as<float>()[i], 1.0F);
      }
    });
  }
}

// D6: full precision in evaluation: off by default; on, parameters and inputs are fp32 there, and the next training
// forward casts back.
TEST(D6Eval, FullPrecisionWhenAskedFor) {
  for (const bool asked : {false, true}) {
    for (const auto& [strategy, shares_memory] :
         {std::pair{Strategy::full_shard, false}, {Strategy::shard_optim, false}, {Strategy::shard_optim, true}}) {
      const auto run_rank = [&](auto world) {
        RankRig rig(std::move(world));
        ProbeModel model(2);
        Options options = with_dtype(DType::bf16);
        options.strategy = strategy;
        options.root = RootOptions{.full_precision_in_eval = asked};
        shard_layers(model, rig.device_mesh(), options);
        for (int i = 0; i < 2; ++i) {
          rig.context().training = false;
          static_cast<void>(model.forward(rig.context(), {input_of(rig.context())}, nullptr));
          EXPECT_EQ(model.layers[0]->weight_seen, asked ? DType::f32 : DType::bf16);
          EXPECT_EQ(model.layers[1]->x_seen, asked ? DType::f32 : DType::bf16);
          rig.context().training = true;
          train_pass(model, rig.context());
          EXPECT_EQ(model.layers[0]->weight_seen, DType::bf16);
          EXPECT_EQ(model.layers[1]->x_seen, DType::bf16);
        }
        rig.meet();
      };
      run_local_ranks(2, run_rank, {.shares_memory = shares_memory});
    }
  }
}

// D6: a loss that gets its value in backward cannot be cast before.
TEST(D6Outputs, ALossWithoutAValueIsNotCast) {
  run_local_ranks(1, [](auto world) {
    RankRig rig(std::move(world));
    nn::Gpt2 model({.layers = 1, .heads = 1, .width = 4, .context = 4, .vocab_size = 7});
    Options options;
    options.mixed_precision.output_dtype = DType::bf16;
    fully_shard(model, rig.device_mesh(), options);
    root_of(model).initialize(1);
    const Tensor ids = rig.context().make({1, 4}, DType::i32);
    std::fill_n(static_cast<std::int32_t*>(ids.view().data), 4, 1);
    nn::Record record;
    EXPECT_EQ(model.forward(rig.context(), {ids, ids}, &record)[0].dtype(), DType::bf16);
    root_of(model).abandon_step();
    rig.context().loss_in_backward = true;
    nn::Record other;
    EXPECT_THAT(test::error_of<ConfigError>([&] {
                  (void)model.forward(rig.context(), {ids, ids}, &other);
                }),
                ::testing::HasSubstr("output_dtype bf16 would cast a loss that has its value only after backward"));
    root_of(model).abandon_step();
  });
}

// D6: gradients of a backward in full precision are not downcast, whichever of param_dtype and reduce_dtype is low.
TEST(D6Eval, GradientsInFullPrecisionAreNotRounded) {
  for (const auto& [sharding, low_reduce_only] :
       {std::pair{Sharding::flat, false}, {Sharding::per_parameter, false}, {Sharding::flat, true}}) {
    run_local_ranks(2, [&, sharding = sharding, low_reduce_only = low_reduce_only](auto world) {
      RankRig rig(std::move(world));
      ProbeModel model(2);
      Options options = with_dtype(low_reduce_only ? std::nullopt : std::optional(DType::bf16));
      if (low_reduce_only) options.mixed_precision.reduce_dtype = DType::bf16;
      options.root = RootOptions{.full_precision_in_eval = true};
      options.sharding = sharding;
      shard_layers(model, rig.device_mesh(), options);
      constexpr float kExact = 1.0F + 0x1p-12F;  // bf16 has 8 bits
      for (ProbeLayer* layer : model.layers) layer->gradient = kExact;
      for (const bool training : {false, true}) {
        rig.context().training = training;
        train_pass(model, rig.context());
        rig.compute().synchronize();
        for (const Piece& p : root_of(model).pieces()) {
          const nn::Parameter& parameter = *root_of(model).parameter(p).parameter;
          if (parameter.name == "weight" && parameter.shape.numel() == 5) {  // a layer's
            EXPECT_EQ(root_of(model).grad(p).as<float>()[0], training ? 1.0F : kExact);
          }
        }
        root_of(model).zero_grad();
      }
    });
  }
}

// D6: reduce_dtype unset: gradients are reduced in param_dtype if that is set, else in fp32. Bytes of the traffic.
TEST(D6Reduce, DtypeOfTheReduction) {
  const auto bytes = [](std::optional<DType> param_dtype, std::optional<DType> reduce_dtype) {
    std::int64_t found = 0;
    run_local_ranks(2, [&](auto world) {
      RankRig rig(std::move(world));
      ProbeModel model(
          1, [](const std::string&) {}, 128);
      Options options = with_dtype(param_dtype);
      options.mixed_precision.reduce_dtype = reduce_dtype;
      shard_layers(model, rig.device_mesh(), options);
      train_pass(model, rig.context());
      if (rig.rank() == 0) found = rig.device_mesh().reduce_group().counts().bytes_of(Collective::reduce_scatter);
    });
    return found;
  };
  const std::int64_t elements = 128 + 4;  // the root's 3, padded
  EXPECT_EQ(bytes(std::nullopt, std::nullopt), 4 * elements);
  EXPECT_EQ(bytes(DType::bf16, std::nullopt), 2 * elements);
  EXPECT_EQ(bytes(DType::bf16, DType::f32), 4 * elements);
  EXPECT_EQ(bytes(std::nullopt, DType::bf16), 2 * elements);
}

// D6: a backward has the precision of its own forward, whatever has run since: an evaluation in full precision between
// a training forward and its backward changes nothing, nor does a training forward for a backward of the evaluation.
TEST(D6Reduce, PrecisionIsThatOfTheForwardWhoseBackwardItIs) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    for (const bool of_training : {true, false}) {
      run_local_ranks(2, [&](auto world) {
        RankRig rig(std::move(world));
        ProbeModel model(
            2, [](const std::string&) {}, 128);
        Options options = with_dtype(DType::bf16);
        options.strategy = strategy;
        options.root = RootOptions{.full_precision_in_eval = true};
        options.mixed_precision.cast_forward_inputs = true;
        shard_layers(model, rig.device_mesh(), options);
        nn::Record record;
        rig.context().training = of_training;
        nn::Tensors ys = model.forward(rig.context(), {input_of(rig.context())}, &record);
        rig.context().training = !of_training;
        static_cast<void>(model.forward(rig.context(), {input_of(rig.context())}, nullptr));
        rig.device_mesh().unshard_group().reset_counts();
        model.backward(rig.context(), std::move(record), std::move(ys));
        const std::int64_t elements = 2 * 128 + 4;  // the root's 3, padded
        EXPECT_EQ(rig.device_mesh().reduce_group().counts().bytes_of(Collective::reduce_scatter), (of_training ? 2 : 4) * elements);
        // The evaluation has given back what it took; the other way round the training forward.
        EXPECT_EQ(rig.device_mesh().unshard_group().counts().bytes_of(Collective::all_gather), (of_training ? 2 : 4) * elements);
      });
    }
  }
}

// D6: keep-low-precision gradients: the sharded gradient stays in reduce_dtype, in half the bytes, and micro-batches
// add up in it; off (the default) it is widened first. An evaluation in full precision keeps fp32 either way.
TEST(D6LowPrecisionGradients, StayInReduceDtypeWhenAskedFor) {
  EXPECT_FALSE(Options{}.mixed_precision.keep_low_precision_grads);
  constexpr float kSmall = 0x1p-9F;  // lost beside 1 in bf16
  for (const bool keeps : {false, true}) {
    for (const CpuOffload offload : {CpuOffload::none, CpuOffload::gradients}) {
      for (const auto& [param, reduce] : {std::pair{std::optional(DType::bf16), std::optional<DType>()},
                                          {std::optional<DType>(), std::optional(DType::bf16)},
                                          {std::optional(DType::bf16), std::optional(DType::f32)}}) {
        for (const int num_ranks : {1, 2, 3}) {
          run_local_ranks(num_ranks, [&, param = param, reduce = reduce](auto world) {
            RankRig rig(std::move(world));
            ProbeModel model(
                1, [](const std::string&) {}, 7);
            Options options{.cpu_offload = offload};
            options.mixed_precision = {.param_dtype = param, .reduce_dtype = reduce, .keep_low_precision_grads = keeps};
            shard_layers(model, rig.device_mesh(), options);
            train_pass(model, rig.context());
            model.layers[0]->gradient = kSmall;
            train_pass(model, rig.context());
            rig.compute().synchronize();
            const UnitStorage& storage = *unit_of(*model.layers[0]).storage();
            const bool is_low = keeps && options.reduce_dtype() == DType::bf16;
            EXPECT_EQ(storage.sharded_grad().dtype, is_low ? DType::bf16 : DType::f32);
            const std::int64_t elements = (7 + num_ranks - 1) / num_ranks + (3 + num_ranks - 1) / num_ranks;
            EXPECT_EQ(storage.grad_pool().stats().current_of(MemoryRole::sharded_grad), (is_low ? 2 : 4) * elements);
            for (const Piece& p : root_of(model).pieces()) {
              if (root_of(model).parameter(p).parameter != &model.layers[0]->weight()) continue;
              EXPECT_EQ(rig.values(root_of(model).grad(p))[0], is_low ? 1.0F : 1.0F + kSmall);
            }
          });
        }
      }
    }
  }
}

TEST(D6LowPrecisionGradients, FullPrecisionInEvalComesFirst) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    ProbeModel model(1);
    Options options = with_dtype(DType::bf16);
    options.mixed_precision.keep_low_precision_grads = true;
    options.root = RootOptions{.full_precision_in_eval = true};
    shard_layers(model, rig.device_mesh(), options);
    rig.context().training = false;
    train_pass(model, rig.context());
    EXPECT_EQ(unit_of(*model.layers[0]).storage()->sharded_grad().dtype, DType::f32);
  });
}

// D9: offloaded masters and gradients are in the offload tier, to the byte, and nothing of them on the device after a
// synchronising backward; gradients alone likewise. What is unsharded stays on the device.
TEST(D9Offload, MastersAndGradientsLiveInTheOffloadTier) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    for (const CpuOffload offload : {CpuOffload::none, CpuOffload::gradients, CpuOffload::parameters}) {
      for (const int num_ranks : {1, 2, 3}) {
        run_local_ranks(num_ranks, [&](auto world) {
          RankRig rig(std::move(world), 0, {}, mode);
          ProbeModel model(
              2, [](const std::string&) {}, 7);
          shard_layers(model, rig.device_mesh(), {.cpu_offload = offload});
          const auto shard = [&](std::int64_t numel) { return (numel + num_ranks - 1) / num_ranks; };
          const std::int64_t bytes = 4 * (2 * shard(7) + shard(3));
          const auto on_device = [&](MemoryRole role) { return rig.pool().stats().current_of(role); };
          const auto offloaded = [&](MemoryRole role) { return rig.device_mesh().offload().pool->stats().current_of(role); };
          const bool of_parameters = offload == CpuOffload::parameters, of_gradients = offload != CpuOffload::none;
          for (int step = 0; step < 2; ++step) {
            EXPECT_EQ(offloaded(MemoryRole::sharded_param), of_parameters ? bytes : 0);
            EXPECT_EQ(on_device(MemoryRole::sharded_param), of_parameters ? 0 : bytes);
            EXPECT_EQ(offloaded(MemoryRole::sharded_grad), 0);
            train_pass(model, rig.context());
            EXPECT_EQ(offloaded(MemoryRole::sharded_grad), of_gradients ? bytes : 0);
            EXPECT_EQ(on_device(MemoryRole::sharded_grad), of_gradients ? 0 : bytes);
            // The host has waited: an optimizer there may read at once.
            if (of_gradients) {
              for (const Piece& p : root_of(model).pieces()) {
                for (std::int64_t i = 0; i < p.numel(); ++i) EXPECT_EQ(root_of(model).grad(p).as<float>()[i], 1.0F);
              }
            }
            root_of(model).zero_grad();
          }
          EXPECT_EQ(rig.device_mesh().offload().pool->stats().current, of_parameters ? bytes : 0);
          EXPECT_EQ(rig.device_mesh().offload().pool->stats().peak, (of_parameters ? bytes : 0) + (of_gradients ? bytes : 0));
        });
      }
    }
  }
}

}  // namespace
}  // namespace mica::fsdp::testing
