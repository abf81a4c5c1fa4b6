// SPDX-License-Identifier: Apache-2.0
// docs/parity.md D5, D11, D15, D17, D19: passes in any order, recomputation, states, no_sync, units moved by hand.
#include <cmath>
#include <optional>
#include <stdexcept>

#include <gmock/gmock.h>

#include "mica/fsdp/gradient_reduction.hpp"
#include "mica/nn/init.hpp"

#include "probe_model.hpp"
#include "support/temporary_folder.hpp"

namespace mica::fsdp::testing {
namespace {

using mica::test::error_of;
using ::testing::HasSubstr;

// --- D5: accumulation -------------------------------------------------------------------------------------------------

constexpr std::int64_t kIn = 5, kOut = 3, kRows = 2;  // rows of a micro-batch

std::vector<float> numbers(std::int64_t numel, int micro_batch, int salt) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < numel; ++i) {
    values.push_back(static_cast<float>(std::sin(0.9 * static_cast<double>(i) + 1.7 * micro_batch + salt)));
  }
  return values;
}

/// Micro-batches first .. first + count - 1, one behind the other.
Tensor batch(nn::Context& context, int first, int count, std::int64_t width, int salt) {
  Tensor tensor = context.make({count * kRows, width}, DType::f32);
  context.compute.synchronize();
  for (int m = 0; m < count; ++m) std::ranges::copy(numbers(kRows * width, first + m, salt), tensor.view().as<float>() + m * kRows * width);
  return tensor;
}

struct Passes {
  nn::Module& model;
  nn::Context& context;
  nn::Tensors forward(int first, int count, nn::Record& record) {
    return model.forward(context, {batch(context, first, count, kIn, 0)}, &record);
  }
  void backward(int first, int count, nn::Record&& record) {
    model.backward(context, std::move(record), {batch(context, first, count, kOut, 1)});
  }
  void both(int first, int count = 1) {
    nn::Record record;
    static_cast<void>(forward(first, count, record));
    backward(first, count, std::move(record));
  }
};

std::unique_ptr<nn::Sequential> make_model() { return make_chain({kIn, 7, 4, kOut}); }

/// Gradients of micro-batches 0 .. count - 1 in one backward of an unsharded model, by parameter.
std::vector<std::vector<float>> concatenated(int count) {
  const auto pool = make_cpu_pool();
  const auto kernels = make_cpu_kernels(*pool);
  const auto compute = make_cpu_stream("compute", StreamMode::inlined);
  nn::Context context{.compute = *compute, .pool = *pool, .kernels = *kernels};
  auto model = make_model();
  const nn::PlainParameters storage(*model, context);
  std::vector<std::vector<float>> gradients;
  // As root.initialize(1) does.
  model->for_each_parameter(
      [&](const std::string& name, nn::Parameter& p) { nn::fill_initial(*kernels, *compute, p, name, 1, 0, p.data); });
  Passes{*model, context}.both(0, count);
  model->for_each_parameter(
      [&](const std::string&, nn::Parameter& p) { gradients.emplace_back(p.grad.as<float>(), p.grad.as<float>() + p.shape.numel()); });
  return gradients;
}

/// Sharded gradients times the world are those of micro-batches 0 .. count - 1; products of a few rows in fp32.
void expect_concatenated(RankRig& rig, nn::Module& model, int count, const std::string& what, float factor = 1) {
  const auto expected = concatenated(count);
  std::vector<const nn::Parameter*> order;
  model.for_each_parameter([&](const std::string&, nn::Parameter& p) { order.push_back(&p); });
  rig.compute().synchronize();
  for (const Piece& p : root_of(model).pieces()) {
    const auto n = static_cast<std::size_t>(std::ranges::find(order, root_of(model).parameter(p).parameter) - order.begin());
    ASSERT_TRUE(root_of(model).grad(p)) << what;
    for (std::int64_t i = 0; i < p.numel(); ++i) {
      const float sum = root_of(model).grad(p).as<float>()[i] * static_cast<float>(rig.mesh().world_size());
      ASSERT_NEAR(sum, factor * expected[n][static_cast<std::size_t>(p.begin + i)], 1e-4) << what << " parameter " << n;
    }
  }
}

void shard_chain(nn::Sequential& model, RankRig& rig, const Options& options) {
  for (const nn::Module::Child& child : model.children()) fully_shard(*child.module, rig.device_mesh(), options);
  fully_shard(model, rig.device_mesh(), options);
  root_of(model).initialize(1);
}

// D5: gradient accumulation with and without no_sync in any interleaving equals the concatenated batch, also with CPU
// offload.
TEST(D5Accumulation, AnyInterleavingEqualsTheConcatenatedBatch) {
  for (const int num_ranks : {1, 2, 3}) {
    for (const CpuOffload offload : {CpuOffload::none, CpuOffload::gradients, CpuOffload::parameters}) {
      for (unsigned synced = 0; synced < 8; ++synced) {  // by bit: whether rounds 1 to 3 of 4 reduce; the last one does
        run_local_ranks(num_ranks, [&](auto world) {
          RankRig rig(std::move(world));
          auto model = make_model();
          shard_chain(*model, rig, {.cpu_offload = offload});
          Passes passes{*model, rig.context()};
          for (int round = 0; round < 4; ++round) {
            root_of(*model).set_gradient_sync(round == 3 || ((synced >> round) & 1U) != 0);
            passes.both(round * num_ranks + rig.rank());
          }
          expect_concatenated(rig, *model, 4 * num_ranks,
                              fmt::format("{} ranks, offload {}, pattern {}", num_ranks, static_cast<int>(offload), synced));
        });
      }
    }
  }
}

// D5: several forwards before one backward, as one pass (one reduction) and as several.
TEST(D5Accumulation, SeveralForwardsBeforeTheBackwards) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    for (const bool one_pass : {false, true}) {
      run_local_ranks(2, [&](auto world) {
        RankRig rig(std::move(world));
        auto model = make_model();
        shard_chain(*model, rig, {.strategy = strategy});
        Passes passes{*model, rig.context()};
        nn::Record first, second;
        static_cast<void>(passes.forward(rig.rank(), 1, first));
        static_cast<void>(passes.forward(2 + rig.rank(), 1, second));
        std::optional<BackwardPass> pass;
        if (one_pass) pass.emplace(root_of(*model));
        passes.backward(rig.rank(), 1, std::move(first));  // not even in reverse order
        passes.backward(2 + rig.rank(), 1, std::move(second));
        if (pass) pass->finish();
        expect_concatenated(rig, *model, 4, one_pass ? "one pass" : "two passes");
        EXPECT_EQ(reduce_scatters(rig.device_mesh()), one_pass ? 3 : 6);
      });
    }
  }
}

// D5: several backwards after one forward; the work at the end of a backward runs after each.
TEST(D5Accumulation, SeveralBackwardsAfterOneForward) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    auto model = make_model();
    shard_chain(*model, rig, {});
    Passes passes{*model, rig.context()};
    nn::Record record;
    static_cast<void>(passes.forward(rig.rank(), 1, record));
    record.keep();
    for (int i = 1; i <= 2; ++i) {
      passes.backward(rig.rank(), 1, std::move(record));
      EXPECT_EQ(root_of(*model).state(), TrainingState::idle);
      EXPECT_EQ(reduce_scatters(rig.device_mesh()), 3 * i);
      for (const Unit* unit : root_of(*model).units()) EXPECT_TRUE(!unit->storage() || !unit->storage()->is_unsharded());
    }
    record.keep(false);
    passes.backward(rig.rank(), 1, std::move(record));
    expect_concatenated(rig, *model, 2, "three backwards", 3);
  });
}

// D5: outputs unused in the loss, a forward without backward, evaluation: none of them disturbs the next step.
TEST(D5Accumulation, ForwardsWithoutBackwardLeaveNothing) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    run_local_ranks(2, [&](auto world) {
      RankRig rig(std::move(world));
      auto model = make_model();
      shard_chain(*model, rig, {.strategy = strategy});
      Passes passes{*model, rig.context()};
      {
        nn::Record dropped;
        static_cast<void>(passes.forward(rig.rank(), 1, dropped));
      }
      {
        nn::Record unused;
        static_cast<void>(passes.forward(rig.rank(), 1, unused));
        model->backward(rig.context(), std::move(unused), nn::Tensors(1));
      }
      static_cast<void>(model->forward(rig.context(), {batch(rig.context(), 0, 1, kIn, 0)}, nullptr));
      passes.both(rig.rank());
      expect_concatenated(rig, *model, 2, "one backward");
      EXPECT_EQ(reduce_scatters(rig.device_mesh()), 3);
      EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::unsharded_param), 0);
      EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::unsharded_grad), 0);
    });
  }
}

// D5: zero_grad() also drops what no_sync has accumulated: the next backward reduces its own gradients only.
TEST(D5Accumulation, ZeroGradDropsAnUnfinishedOne) {
  for (const int num_ranks : {1, 2}) {
    for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
      run_local_ranks(num_ranks, [&](auto world) {
        RankRig rig(std::move(world), 0, {}, mode);
        auto model = make_model();
        shard_chain(*model, rig, {});
        Root& root = root_of(*model);
        Passes passes{*model, rig.context()};
        {
          const NoSync no_sync(root);
          passes.both(num_ranks + rig.rank());
        }
        root.zero_grad();
        rig.compute().synchronize();
        EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::unsharded_grad), 0);
        EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::sharded_grad), 0) << "a rank alone accumulates in what becomes that";
        model->for_each_parameter([](const std::string& name, nn::Parameter& p) { EXPECT_FALSE(p.grad) << name; });
        passes.both(rig.rank());
        expect_concatenated(rig, *model, num_ranks, fmt::format("{} ranks", num_ranks));
      });
    }
  }
}

// D5: a rank alone hands the first micro-batch's gradient over as it is; later ones are added to it.
TEST(D5Accumulation, ARankAloneKeepsTheGradientsThatBackwardWrote) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    run_local_ranks(1, [&](auto world) {
      RankRig rig(std::move(world), 0, {}, mode);
      TensorView written;  // the first layer's
      ProbeModel* seen = nullptr;
      ProbeModel model(2, [&](const std::string& what) {
        if (what == "backward a" && !written) written = seen->layers[0]->weight().grad;
      });
      seen = &model;
      shard_layers(model, rig.device_mesh(), {});
      const UnitStorage& storage = *unit_of(*model.layers[0]).storage();
      for (int step = 1; step <= 2; ++step) {
        written = {};
        train_pass(model, rig.context());
        EXPECT_EQ(storage.sharded_grad().data, written.data);
        EXPECT_FALSE(storage.has_unsharded_grad());
        EXPECT_EQ(rig.values(storage.sharded_grad()), std::vector<float>(5, 1.0F));
        train_pass(model, rig.context());
        EXPECT_EQ(storage.sharded_grad().data, written.data);
        EXPECT_EQ(rig.values(storage.sharded_grad()), std::vector<float>(5, 2.0F));
        root_of(model).zero_grad();
      }
    });
  }
}

// D5: not where something is left to do.
TEST(D5Accumulation, OnlyGradientsWithNothingLeftToDoAreHandedOver) {
  const auto keeps = [](int num_ranks, int shard_size, const Options& options) {
    bool found = false;
    run_local_ranks(num_ranks, [&](auto world) {
      RankRig rig(std::move(world), shard_size);
      ProbeModel model(1);
      shard_layers(model, rig.device_mesh(), options);
      static_cast<void>(root_of(model));
      const bool here = unit_of(*model.layers[0]).storage()->keeps_unsharded_grads();
      if (rig.rank() == 0) found = here;
    });
    return found;
  };
  EXPECT_TRUE(keeps(1, 1, {}));
  EXPECT_FALSE(keeps(1, 1, {.mixed_precision = {.reduce_dtype = DType::bf16}}));
  EXPECT_TRUE(keeps(1, 1, {.mixed_precision = {.reduce_dtype = DType::bf16, .keep_low_precision_grads = true}}));
  EXPECT_FALSE(keeps(1, 1, {.cpu_offload = CpuOffload::gradients}));
  EXPECT_FALSE(keeps(1, 1, {.reduction = &compressing_reduction(DType::bf16)}));
  EXPECT_FALSE(keeps(2, 1, {.strategy = Strategy::no_shard})) << "replicas";
  EXPECT_FALSE(keeps(2, 2, {.strategy = Strategy::no_shard})) << "replicas on a mesh that shards";
  EXPECT_FALSE(keeps(2, 2, {}));
}

// --- D11 --------------------------------------------------------------------------------------------------------------

// D11: checkpointing inside or outside a unit: the same numbers; a recomputed forward gathers nothing a second time.
TEST(D11Checkpointing, GathersAndReducesAsWithout) {
  for (const bool outside : {false, true}) {
    run_local_ranks(2, [&](auto world) {
      RankRig rig(std::move(world));
      auto model = std::make_unique<nn::Sequential>();
      auto& region = model->add<nn::Sequential>("region");
      auto& up = region.add<nn::Linear>("up", kIn, 7);
      auto& down = region.add<nn::Linear>("down", 7, kIn);
      auto& last = model->add<nn::Linear>("last", kIn, kOut);
      // Outside: a region of two units is run again. Inside: each unit runs itself again.
      if (outside) region.set_checkpointed(true);
      for (nn::Linear* unit : {&up, &down, &last}) {
        if (!outside) unit->set_checkpointed(true);
        fully_shard(*unit, rig.device_mesh(), {.backward_prefetch = BackwardPrefetch::none});
      }
      fully_shard(*model, rig.device_mesh(), {.backward_prefetch = BackwardPrefetch::none});
      root_of(*model).initialize(1);
      Passes passes{*model, rig.context()};
      for (int step = 1; step <= 2; ++step) {
        nn::Record record;
        static_cast<void>(passes.forward(rig.rank(), 1, record));
        EXPECT_EQ(all_gathers(rig.device_mesh()), 6 * step - 3);
        passes.backward(rig.rank(), 1, std::move(record));
        EXPECT_EQ(all_gathers(rig.device_mesh()), 6 * step);
        EXPECT_EQ(reduce_scatters(rig.device_mesh()), 3 * step);
      }
    });
  }
}

// --- D15, D17 ---------------------------------------------------------------------------------------------------------

// D15: calls in a wrong state are errors that name the state.
TEST(D15States, CallsInAWrongStateNameIt) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    ProbeModel model(2);
    shard_layers(model, rig.device_mesh(), {});
    Root& root = root_of(model);
    train_pass(model, rig.context());
    BackwardPass pass(root);
    const auto text_of = [&](auto&& action) { return error_of<Error>(action); };
    EXPECT_THAT(text_of([&] { static_cast<void>(model.forward(rig.context(), {input_of(rig.context())}, nullptr)); }),
                HasSubstr("forward of the root is called while it is in backward"));
    EXPECT_THAT(text_of([&] { root.zero_grad(); }), HasSubstr("zero_grad is called while the root is in backward"));
    EXPECT_THAT(text_of([&] { root.reshard(); }), HasSubstr("in backward"));
    EXPECT_THAT(text_of([&] { static_cast<void>(unit_of(*model.layers[0]).unshard()); }),
                HasSubstr("unit a is unsharded by hand while its root is in backward"));
    EXPECT_THAT(text_of([&] { unit_of(*model.layers[0]).reshard(); }), HasSubstr("in backward"));
    EXPECT_THAT(text_of([&] { unit_of(*model.layers[0]).apply([](const std::string&, nn::Parameter&) {}); }), HasSubstr("in backward"));
    // D17: no_sync in backward.
    EXPECT_THAT(text_of([&] { const NoSync no_sync(root); }),
                HasSubstr("gradient synchronisation is switched while the root is in backward"));
    pass.finish();
    EXPECT_EQ(root.state(), TrainingState::idle);
    // An inner unit alone.
    EXPECT_THAT(text_of([&] { static_cast<void>(model.layers[1]->forward(rig.context(), {input_of(rig.context())}, nullptr)); }),
                HasSubstr("forward of unit b is called while its root is idle: call the forward of the root module"));
    // A backward without a forward.
    EXPECT_THAT(text_of([&] { model.backward(rig.context(), nn::Record(), {input_of(rig.context())}); }),
                HasSubstr("backward of unit root is called with a Record that no forward of it has filled"));
    EXPECT_EQ(root.state(), TrainingState::idle);
    train_pass(model, rig.context());  // nothing of it has left a trace
  });
}

// D17: scopes nest, cover nested units, restore the former flag, also when an exception ends them; the root only.
TEST(D17NoSync, NestsAndRestores) {
  run_local_ranks(2, [](auto world) {
    RankRig rig(std::move(world));
    ProbeModel model(2);
    shard_layers(model, rig.device_mesh(), {});
    Root& root = root_of(model);
    {
      const NoSync outer(model);
      {
        const NoSync inner(root);
        EXPECT_FALSE(root.gradient_sync());
      }
      EXPECT_FALSE(root.gradient_sync());
      train_pass(model, rig.context());
      EXPECT_EQ(reduce_scatters(rig.device_mesh()), 0);
    }
    EXPECT_TRUE(root.gradient_sync());
    root.set_gradient_sync(false);
    { const NoSync scope(root); }
    EXPECT_FALSE(root.gradient_sync());
    root.set_gradient_sync(true);
    train_pass(model, rig.context());
    EXPECT_EQ(reduce_scatters(rig.device_mesh()), 3);
    EXPECT_THAT(error_of<Error>([&] { const NoSync wrong(*model.layers[0]); }),
                HasSubstr("no_sync was called on a unit of type probe, which is inside the root model"));
    try {
      const NoSync scope(root);
      BackwardPass pass(root);
      throw std::runtime_error("inside a pass");
    } catch (const std::runtime_error&) {
      EXPECT_TRUE(root.gradient_sync());
    }
    root.abandon_step();
  });
}

// --- D19 --------------------------------------------------------------------------------------------------------------

// D19: what is unsharded by hand is used by the next forward, which gathers nothing for it; reshard gives it back.
TEST(D19ByHand, UnshardAndReshard) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    run_local_ranks(2, [&](auto world) {
      RankRig rig(std::move(world), 0, {}, mode);
      ProbeModel model(2);
      shard_layers(model, rig.device_mesh(), {});
      Unit& a = unit_of(*model.layers[0]);
      UnshardHandle handle = a.unshard();
      EXPECT_EQ(all_gathers(rig.device_mesh()), 1);
      EXPECT_FALSE(model.layers[0]->weight().data);  // not waited for yet
      handle.wait();
      EXPECT_EQ(rig.values(model.layers[0]->weight().data), std::vector<float>(5, 1.0F));
      static_cast<void>(model.forward(rig.context(), {input_of(rig.context())}, nullptr));
      EXPECT_EQ(all_gathers(rig.device_mesh()), 3);  // the root and b
      static_cast<void>(a.unshard());
      a.reshard();
      EXPECT_FALSE(a.storage()->is_unsharded());
      rig.compute().synchronize();
      if (mode == StreamMode::inlined) {
        EXPECT_EQ(rig.pool().stats().current_of(MemoryRole::unsharded_param), 0);
      }
    });
  }
}

// D19: apply() runs over one unit's whole parameters, with write-back.
TEST(D19ByHand, ApplyWritesBack) {
  for (const int num_ranks : {1, 2, 3}) {
    run_local_ranks(num_ranks, [](auto world) {
      RankRig rig(std::move(world));
      ProbeModel model(2);
      shard_layers(model, rig.device_mesh(), {});
      std::vector<std::string> seen;
      unit_of(*model.layers[1]).apply([&](const std::string& name, nn::Parameter& p) {
        seen.push_back(name);
        ASSERT_EQ(p.data.numel(), 5);
        for (int i = 0; i < 5; ++i) p.data.as<float>()[i] = static_cast<float>(10 + i);
      });
      EXPECT_EQ(seen, std::vector<std::string>{"b.weight"});
      unit_of(*model.layers[1]).unshard().wait();
      EXPECT_EQ(rig.values(model.layers[1]->weight().data), (std::vector<float>{10, 11, 12, 13, 14}));
      unit_of(*model.layers[0]).unshard().wait();
      EXPECT_EQ(rig.values(model.layers[0]->weight().data), std::vector<float>(5, 1.0F));
    });
  }
}

}  // namespace
}  // namespace mica::fsdp::testing
