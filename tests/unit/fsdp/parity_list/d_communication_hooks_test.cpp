// SPDX-License-Identifier: Apache-2.0
// docs/parity.md D12: communication hooks.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/fsdp/fully_shard.hpp"
#include "mica/fsdp/gradient_reduction.hpp"

#include "testing/local_group.hpp"

namespace mica::fsdp {
namespace {

constexpr std::int64_t kNumel = 5;

/// Element i of rank r's gradient: not a bf16 number, and no two alike.
float gradient(int rank, std::int64_t i) { return static_cast<float>(rank + 1) + static_cast<float>(i + 1) / 512.0F; }

/// One weight [5]; its backward writes gradient(rank, i).
class Weight final : public nn::Module {
 public:
  explicit Weight(int rank)
      : Module("weight"), rank_(rank), weight_(add_parameter("weight", Shape{kNumel}, nn::Initializer::ones(), true)) {}

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors, nn::Record* record) override {
    Tensor y = context.make(weight_.shape, DType::f32);
    context.kernels.copy(context.compute, data_of(weight_), y);
    y.needs_grad = record != nullptr;
    return nn::list_of(std::move(y));
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record&, nn::Tensors) override {
    const TensorView grad = weight_.write_grad().view;
    for (std::int64_t i = 0; i < kNumel; ++i)
      context.kernels.fill(context.compute, grad.slice(i, 1), static_cast<double>(gradient(rank_, i)));
    return nn::Tensors(1);
  }

 private:
  int rank_;
  nn::Parameter& weight_;
};

struct Layout {
  int ranks;
  int shard_size;
  Strategy strategy;
};

/// One rank that runs backwards of one unit.
class Trained {
 public:
  Trained(std::unique_ptr<ProcessGroup> world, const Layout& layout, GradientReduction* reduction)
      : mesh_(std::move(world),
              {.world_size = layout.ranks, .shard_size = layout.shard_size, .replicas = layout.ranks / layout.shard_size}),
        device_mesh_(mesh_, *pool_, *kernels_, Streams::make(StreamMode::threaded)),
        model_(mesh_.rank()) {
    Options options{.strategy = layout.strategy};
    options.reduction = reduction;
    fully_shard(model_, device_mesh_, options);
    root().initialize(1);
  }
  Root& root() { return root_of(model_); }
  DeviceMesh& device_mesh() { return device_mesh_; }

  void backward() {
    nn::Context context{.compute = device_mesh_.compute(), .pool = *pool_, .kernels = *kernels_};
    nn::Record record;
    const nn::Tensors ys = model_.forward(context, {}, &record);
    model_.backward(context, std::move(record), ys);
    device_mesh_.compute().synchronize();
  }
  /// Calls check(i, gradient element i) for this rank's part.
  template <class Check>
  void for_each(const Check& check) {
    for (const Piece& p : root().pieces()) {
      for (std::int64_t i = 0; i < p.numel(); ++i) check(p.begin + i, root().grad(p).as<float>()[i]);
    }
  }

 private:
  std::unique_ptr<Pool> pool_ = make_cpu_pool();
  std::unique_ptr<Kernels> kernels_ = make_cpu_kernels(*pool_);
  Mesh mesh_;
  DeviceMesh device_mesh_;
  Weight model_;
};

std::vector<Layout> layouts() {
  return {{1, 1, Strategy::full_shard},   {2, 2, Strategy::full_shard},         {3, 3, Strategy::shard_grad_op}, {3, 1, Strategy::no_shard},
          {4, 2, Strategy::hybrid_shard}, {4, 2, Strategy::hybrid_shard_zero2}, {4, 4, Strategy::no_shard}};
}

void on_every_layout(GradientReduction* reduction, const std::function<void(Trained&, const Layout&)>& body) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(fmt::format("{} on {} x {}", strategy_name(layout.strategy), layout.ranks / layout.shard_size, layout.shard_size));
    run_local_ranks(layout.ranks, [&](std::unique_ptr<ProcessGroup> world) {
      Trained trained(std::move(world), layout, reduction);
      body(trained, layout);
    });
  }
}

float rounded(float x, DType dtype) { return dtype == DType::bf16 ? static_cast<float>(bf16(x)) : static_cast<float>(f16(x)); }

/// D12: default.
TEST(CommunicationHooks, D12DefaultIsTheMeanInReduceDtype) {
  on_every_layout(&default_reduction(), [](Trained& trained, const Layout& layout) {
    trained.backward();
    trained.for_each([&](std::int64_t i, float found) {
      double mean = 0;
      for (int r = 0; r < layout.ranks; ++r) mean += static_cast<double>(gradient(r, i)) / layout.ranks;
      EXPECT_NEAR(found, mean, 1e-6);
    });
  });
}

/// D12: both casts and both divisions are the hook's: cast / predivide, one rounding a rank and one for each sum in the low
/// dtype, then postdivide in f32 (D12).
TEST(CommunicationHooks, D12CompressionCastsBeforeAndAfter) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    on_every_layout(&compressing_reduction(dtype), [&](Trained& trained, const Layout& layout) {
      trained.backward();
      const DivisionFactors division = division_factors(layout.ranks);
      const bool sharded = layout.strategy != Strategy::no_shard;
      const int shard_size = sharded ? layout.shard_size : 1;
      trained.for_each([&](std::int64_t i, float found) {
        float total = 0;
        for (int first = 0; first < layout.ranks; first += shard_size) {
          float sum = 0;
          for (int r = first; r < first + shard_size; ++r) sum += rounded(gradient(r, i) * static_cast<float>(1 / division.pre), dtype);
          total += shard_size > 1 ? rounded(sum, dtype) : sum;
        }
        if (layout.ranks > shard_size) total = rounded(total, dtype);
        EXPECT_EQ(found, total * static_cast<float>(1 / division.post)) << i;
        const float exact = static_cast<float>(layout.ranks + 1) / 2 + static_cast<float>(i + 1) / 512.0F;
        if (dtype == DType::bf16 && i == 0) {
          EXPECT_NE(found, exact) << "it was rounded";
        }
        EXPECT_NEAR(found, exact, 0.05);
      });
      // Accumulation is in f32 behind the hook.
      std::vector<float> before;
      trained.for_each([&](std::int64_t, float x) { before.push_back(x); });
      trained.backward();
      std::size_t at = 0;
      trained.for_each([&](std::int64_t, float x) { EXPECT_EQ(x, 2 * before[at++]); });
    });
  }
}

/// D12
TEST(CommunicationHooks, D12CompressionHalvesTheBytes) {
  for (GradientReduction* reduction : {&default_reduction(), &compressing_reduction(DType::f16)}) {
    const std::int64_t element = reduction == &default_reduction() ? 4 : 2;
    run_local_ranks(4, [&](std::unique_ptr<ProcessGroup> world) {
      Trained trained(std::move(world), {4, 2, Strategy::hybrid_shard}, reduction);
      trained.backward();
      EXPECT_EQ(trained.device_mesh().reduce_group().counts().bytes_of(Collective::reduce_scatter), 6 * element);
      EXPECT_EQ(trained.device_mesh().replicate_group().counts().bytes_of(Collective::all_reduce), 3 * element);
    });
  }
}

/// D12
TEST(CommunicationHooks, D12OtherDtypesAreRefused) {
  try {
    (void)compressing_reduction(DType::f32);
    ADD_FAILURE() << "expected a ConfigError";
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(), "gradients can be compressed to fp16 or bf16, not to fp32");
  }
}

/// A user's own: the sum instead of the mean, with what it was handed checked on the way.
class SumHook final : public GradientReduction {
 public:
  explicit SumHook(int world) : world_(world) {}
  void reduce(const ReductionJob& job) override {
    const std::int64_t shard = job.sharded_grad.numel();
    EXPECT_STREQ(job.unit_name, "root");
    EXPECT_EQ(job.unsharded_grad.numel(), job.shard_size * shard);
    EXPECT_EQ(shard, (kNumel + job.shard_size - 1) / job.shard_size);
    EXPECT_EQ(job.shard_size * job.all_reduce_group.num_ranks(), world_) << "nothing of the mesh is kept from a hook";
    job.post_backward.submit("look", {reads(job.unsharded_grad)}, [job] {
      for (std::int64_t i = 0; i < job.unsharded_grad.numel(); ++i) {
        const float x = job.unsharded_grad.as<float>()[i];
        EXPECT_EQ(x, i < kNumel ? gradient(job.device_mesh.mesh().rank(), i) : 0.0F) << "the gradient, then zeros";
      }
    });
    const TensorView slice = job.own_slice();
    if (job.shard_size > 1) job.shard_group.reduce_scatter(job.post_backward, "mine", job.unsharded_grad, slice);
    job.result_stream.wait(job.post_backward.record());
    job.all_reduce_group.all_reduce(job.result_stream, "mine", slice, ReduceOp::sum);
    job.device_mesh.kernels().scale(job.result_stream, slice, 1.0, job.sharded_grad, job.mode);
  }

 private:
  int world_;
};

/// D12: a hook of one's own replaces reduction and both divisions, on sharded, no_shard and hybrid units alike.
TEST(CommunicationHooks, D12UsersOwn) {
  for (const Layout& layout : layouts()) {
    SumHook hook(layout.ranks);
    run_local_ranks(layout.ranks, [&](std::unique_ptr<ProcessGroup> world) {
      Trained trained(std::move(world), layout, &hook);
      trained.backward();
      trained.for_each([&](std::int64_t i, float found) {
        float sum = 0;
        for (int r = 0; r < layout.ranks; ++r) sum += gradient(r, i);
        EXPECT_NEAR(found, sum, 1e-5) << strategy_name(layout.strategy);
      });
    });
  }
}

}  // namespace
}  // namespace mica::fsdp
