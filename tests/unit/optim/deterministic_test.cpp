// SPDX-License-Identifier: Apache-2.0
// docs/parity.md F3: bitwise the same run on any number of ranks (docs/design.md, Deterministic mode).
#include "mica/fsdp/deterministic.hpp"

#include <algorithm>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/fsdp/wrap_policy.hpp"
#include "mica/nn/models/gpt2.hpp"
#include "mica/optim/clip_grad_norm.hpp"
#include "mica/optim/optimizer.hpp"

#include "testing/local_group.hpp"

namespace mica::optim {
namespace {

using fsdp::Strategy;

constexpr int kMicroBatches = 12;  // of a step, over all ranks: divides by 1, 2, 3, 4 and 6
constexpr std::int64_t kVocab = 19, kSeqLen = 5;

struct Layout {
  int ranks = 1;
  int shard_size = 0;  // 0: the world
  Strategy strategy = Strategy::full_shard;
  DType param_dtype = DType::f32;
  StreamMode mode = StreamMode::inlined;
  bool deterministic = true;
  fsdp::Sharding sharding = fsdp::Sharding::flat;
  fsdp::CpuOffload offload = fsdp::CpuOffload::none;
  MomentPrecision precision = MomentPrecision::fp32;

  [[nodiscard]] std::string describe() const {
    return fmt::format("{} ranks, shard_size {}, {}, {}, {}, {}, offload {}, moments {}", ranks, shard_size, strategy_name(strategy),
                       dtype_name(param_dtype), mode == StreamMode::inlined ? "inline" : "threaded",
                       sharding == fsdp::Sharding::flat ? "flat" : "per parameter", static_cast<int>(offload),
                       moment_precision_name(precision));
  }
};

/// What must not depend on the layout.
struct TrainedRun {
  std::vector<float> losses;      // [step][micro-batch]
  std::vector<float> norms;       // [step], before clipping
  std::vector<float> parameters;  // whole masters, in module order
};

bool bits_are_equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<std::int32_t> tokens_of(int step, int micro_batch, int shift) {
  std::vector<std::int32_t> ids(kSeqLen);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i) + shift;
    ids[i] = static_cast<std::int32_t>((at * at * 5 + at * 3 + step * 11 + micro_batch * 7) % kVocab);
  }
  return ids;
}

class Training {
 public:
  Training(std::unique_ptr<ProcessGroup> world, const Layout& layout)
      : layout_(layout),
        mesh_(std::move(world), geometry(layout)),
        device_mesh_(mesh_, *pool_, *kernels_, fsdp::Streams::make(layout.mode)),
        context_{.compute = device_mesh_.compute(), .pool = *pool_, .kernels = *kernels_} {
    context_.seed = 7;
    context_.loss_in_backward = true;
    fsdp::Options options{.strategy = layout.strategy};
    options.mixed_precision.param_dtype = layout.param_dtype;
    options.sharding = layout.sharding;
    options.cpu_offload = layout.offload;
    if (layout.deterministic) options.root = fsdp::RootOptions{.deterministic = true};
    root_ = &fsdp::auto_wrap(model_, device_mesh_, options, fsdp::wrap_types({"gpt2_block"}));
    root_->initialize(7);
    optimizer_ = make_adamw(*root_, {.precision = layout.precision});
  }

  [[nodiscard]] fsdp::Root& root() { return *root_; }
  [[nodiscard]] fsdp::DeviceMesh& device_mesh() { return device_mesh_; }

  /// @param out  of all ranks: each writes what it alone holds.
  void step(int step, TrainedRun& out) {
    const int rounds = kMicroBatches / layout_.ranks;
    for (int round = 0; round < rounds; ++round) {
      const int m = round * layout_.ranks + mesh_.rank();
      out.losses[static_cast<std::size_t>(step * kMicroBatches + m)] =
          micro_batch(step, m, layout_.deterministic ? 1.0F : 1.0F / static_cast<float>(rounds));
    }
    if (layout_.deterministic) average_grads(*root_, kMicroBatches);
    const ClipCoefficient clip = clip_coefficient(*root_, 0.5);
    optimizer_->step({.lr = 0.01, .grad_scale = clip.coefficient.view()});
    root_->zero_grad();
    context_.compute.synchronize();
    if (mesh_.rank() == 0) out.norms[static_cast<std::size_t>(step)] = *clip.norm.view().as<float>();
  }

  void write_parameters(TrainedRun& out) {
    std::vector<std::pair<std::string, std::int64_t>> begins;
    std::int64_t total = 0;
    model_.for_each_parameter([&](const std::string& name, nn::Parameter& p) {
      begins.emplace_back(name, total);
      total += p.shape.numel();
    });
    if (mesh_.rank() == 0) out.parameters.resize(static_cast<std::size_t>(total));
    mesh_.world().barrier(context_.compute, "sized");
    context_.compute.synchronize();
    for (const fsdp::Piece& p : root_->pieces()) {
      if (mesh_.replica_rank() != 0 || (root_->storage(p).shard_size() == 1 && mesh_.rank() != 0)) continue;
      const auto found = std::ranges::find(begins, root_->parameter(p).full_name, &std::pair<std::string, std::int64_t>::first);
      for (std::int64_t i = 0; i < p.num_runs(); ++i) {
        const fsdp::Run run = p.run(i);
        std::copy_n(root_->storage(p).master().as<float>() + run.offset, run.numel(), out.parameters.begin() + found->second + run.begin);
      }
    }
  }

 private:
  static MeshGeometry geometry(const Layout& layout) {
    const int shard_size = layout.shard_size == 0 ? layout.ranks : layout.shard_size;
    return {.world_size = layout.ranks, .shard_size = shard_size, .replicas = layout.ranks / shard_size};
  }
  float micro_batch(int step, int m, float dloss) {
    context_.step = static_cast<std::uint64_t>(step) + 1;
    context_.sequences = {m};
    std::vector<std::int32_t> ids = tokens_of(step, m, 0), targets = tokens_of(step, m, 1);
    nn::Record record;
    const nn::Tensors ys = model_.forward(
        context_, {Tensor(TensorView{ids.data(), {1, kSeqLen}, DType::i32}), Tensor(TensorView{targets.data(), {1, kSeqLen}, DType::i32})},
        &record);
    model_.backward(context_, std::move(record), {Tensor(TensorView{&dloss, {1}, DType::f32})});
    context_.compute.synchronize();
    return *ys[0].view().as<float>();
  }

  Layout layout_;
  std::unique_ptr<Pool> pool_ = make_cpu_pool();
  std::unique_ptr<Kernels> kernels_ = make_cpu_kernels(*pool_);
  Mesh mesh_;
  fsdp::DeviceMesh device_mesh_;
  nn::Context context_;
  nn::Gpt2 model_{{.layers = 1, .heads = 3, .width = 12, .context = 8, .vocab_size = kVocab, .tie_embeddings = true, .dropout = 0.1}};
  fsdp::Root* root_ = nullptr;
  std::unique_ptr<Optimizer> optimizer_;
};

TrainedRun train(const Layout& layout, int num_steps) {
  TrainedRun out;
  out.losses.resize(static_cast<std::size_t>(num_steps * kMicroBatches));
  out.norms.resize(static_cast<std::size_t>(num_steps));
  run_local_ranks(layout.ranks, [&](std::unique_ptr<ProcessGroup> world) {
    Training training(std::move(world), layout);
    for (int step = 0; step < num_steps; ++step) training.step(step, out);
    training.write_parameters(out);
  });
  return out;
}

void expect_same_bits(const TrainedRun& expected, const Layout& layout, int num_steps) {
  const TrainedRun found = train(layout, num_steps);
  EXPECT_TRUE(bits_are_equal(expected.losses, found.losses)) << layout.describe() << ": losses";
  EXPECT_TRUE(bits_are_equal(expected.norms, found.norms)) << layout.describe() << ": norms";
  EXPECT_TRUE(bits_are_equal(expected.parameters, found.parameters)) << layout.describe() << ": parameters";
}

class Deterministic : public ::testing::TestWithParam<DType> {};

/// F3
TEST_P(Deterministic, F3FiftyStepsHaveTheSameBitsOnAnyNumberOfRanks) {
  constexpr int kSteps = 50;
  const DType dtype = GetParam();
  const TrainedRun alone = train({.ranks = 1, .param_dtype = dtype}, kSteps);
  EXPECT_LT(alone.losses.back(), 0.9F * alone.losses.front()) << "it learns";
  for (const int ranks : {2, 3, 4, 6}) expect_same_bits(alone, {.ranks = ranks, .param_dtype = dtype}, kSteps);
  Layout grid{.ranks = 4, .shard_size = 2, .strategy = Strategy::hybrid_shard, .param_dtype = dtype};
  expect_same_bits(alone, grid, kSteps);
  for (const int ranks : {2, 3, 6}) {
    expect_same_bits(alone, {.ranks = ranks, .param_dtype = dtype, .sharding = fsdp::Sharding::per_parameter}, kSteps);
  }
  grid.sharding = fsdp::Sharding::per_parameter;
  expect_same_bits(alone, grid, kSteps);
}

/// F3
TEST_P(Deterministic, F3StrategyAndStreamsDoNotShow) {
  constexpr int kSteps = 5;
  const DType dtype = GetParam();
  const TrainedRun alone = train({.ranks = 1, .param_dtype = dtype}, kSteps);
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    for (Layout layout :
         {Layout{.ranks = 3, .strategy = Strategy::shard_grad_op}, Layout{.ranks = 3, .shard_size = 1, .strategy = Strategy::no_shard},
          Layout{.ranks = 4, .strategy = Strategy::no_shard},  // whole units on a sharded mesh
          Layout{.ranks = 6, .shard_size = 2, .strategy = Strategy::hybrid_shard_zero2},
          Layout{.ranks = 2, .offload = fsdp::CpuOffload::parameters},
          Layout{.ranks = 3, .strategy = Strategy::shard_optim, .offload = fsdp::CpuOffload::gradients},
          Layout{.ranks = 6, .shard_size = 3, .strategy = Strategy::hybrid_shard}}) {
      layout.param_dtype = dtype;
      layout.mode = mode;
      expect_same_bits(alone, layout, kSteps);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Deterministic, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& p) { return std::string(dtype_name(p.param)); });

class NarrowMoments : public ::testing::TestWithParam<MomentPrecision> {};

/// F3: moments are rounded element by element, by what is equal on any number of ranks, however shards are cut.
TEST_P(NarrowMoments, F3SameBitsOnAnyNumberOfRanks) {
  constexpr int kSteps = 20;
  const TrainedRun alone = train({.ranks = 1, .precision = GetParam()}, kSteps);
  EXPECT_FALSE(bits_are_equal(alone.parameters, train({.ranks = 1}, kSteps).parameters)) << "the precision is used";
  for (Layout layout :
       {Layout{.ranks = 2}, Layout{.ranks = 3}, Layout{.ranks = 4}, Layout{.ranks = 3, .mode = StreamMode::threaded},
        Layout{.ranks = 3, .sharding = fsdp::Sharding::per_parameter}, Layout{.ranks = 2, .offload = fsdp::CpuOffload::parameters},
        Layout{.ranks = 4, .shard_size = 2, .strategy = Strategy::hybrid_shard}}) {
    layout.precision = GetParam();
    expect_same_bits(alone, layout, kSteps);
  }
}

/// A small training learns as well as with fp32.
TEST_P(NarrowMoments, LearnAsFp32Does) {
  constexpr int kSteps = 60;
  const auto last_loss = [](const TrainedRun& run) {
    double sum = 0;
    for (int i = 0; i < 10 * kMicroBatches; ++i)
      sum += static_cast<double>(run.losses[run.losses.size() - 1 - static_cast<std::size_t>(i)]);
    return sum / (10 * kMicroBatches);
  };
  const TrainedRun wide = train({.ranks = 1}, kSteps), narrow = train({.ranks = 1, .precision = GetParam()}, kSteps);
  EXPECT_LT(last_loss(wide), 0.9 * static_cast<double>(wide.losses.front()));
  EXPECT_NEAR(last_loss(narrow), last_loss(wide), 0.03 * last_loss(wide));
}

INSTANTIATE_TEST_SUITE_P(Precisions, NarrowMoments, ::testing::Values(MomentPrecision::bf16, MomentPrecision::int8),
                         [](const auto& p) { return std::string(moment_precision_name(p.param)); });

/// So the tests above can fail (F3).
TEST(Deterministic, F3OrdinaryReductionDoesDepend) {
  const TrainedRun alone = train({.ranks = 1, .deterministic = false}, 3);
  const TrainedRun three = train({.ranks = 3, .deterministic = false}, 3);
  EXPECT_FALSE(bits_are_equal(alone.parameters, three.parameters));
  EXPECT_FALSE(bits_are_equal(alone.norms, three.norms));
}

/// It is the mean that an ordinary run takes (F3).
TEST(Deterministic, F3FollowsTheOrdinaryRun) {
  const TrainedRun ordinary = train({.ranks = 1, .deterministic = false}, 1);
  const TrainedRun found = train({.ranks = 1}, 1);
  EXPECT_TRUE(bits_are_equal(ordinary.losses, found.losses));
  EXPECT_NEAR(found.norms[0] / ordinary.norms[0], 1, 1e-6);
}

/// F3
TEST(Deterministic, F3CollectivesOfAStep) {
  run_local_ranks(4, [](std::unique_ptr<ProcessGroup> world) {
    Training training(std::move(world), {.ranks = 4, .shard_size = 2, .strategy = Strategy::hybrid_shard});
    TrainedRun out;
    out.losses.resize(2 * kMicroBatches);
    out.norms.resize(2);
    training.step(0, out);
    fsdp::DeviceMesh& mesh = training.device_mesh();
    for (ProcessGroup* group : {&mesh.reduce_group(), &mesh.replicate_group(), &mesh.shard_norm_group()}) group->reset_counts();
    training.step(1, out);
    constexpr std::int64_t kUnits = 2, kRounds = kMicroBatches / 4;
    EXPECT_EQ(mesh.reduce_group().counts().of(Collective::all_to_all), kUnits * kRounds);
    EXPECT_EQ(mesh.reduce_group().counts().of(Collective::reduce_scatter), 0);
    EXPECT_EQ(mesh.replicate_group().counts().of(Collective::all_gather), kUnits * kRounds);
    EXPECT_EQ(mesh.replicate_group().counts().of(Collective::all_reduce), 0);
    EXPECT_EQ(mesh.replicate_group().counts().bytes_of(Collective::all_gather),
              2 * mesh.reduce_group().counts().bytes_of(Collective::all_to_all))
        << "unsharded gradients of both replicas";
    EXPECT_EQ(mesh.shard_norm_group().counts().of(Collective::all_gather), 1);
    EXPECT_EQ(mesh.shard_norm_group().counts().bytes_of(Collective::all_gather), 2 * 20 * 8) << "limbs of two ranks";
    EXPECT_EQ(mesh.shard_norm_group().counts().of(Collective::all_reduce), 0);
  });
}

/// F3
TEST(Deterministic, F3NoSyncIsRefused) {
  run_local_ranks(1, [](std::unique_ptr<ProcessGroup> world) {
    Training training(std::move(world), {});
    try {
      training.root().set_gradient_sync(false);
      ADD_FAILURE() << "expected an Error";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr("no_sync does not go with the deterministic reduction"));
    }
    training.root().set_gradient_sync(true);
    EXPECT_THROW(average_grads(training.root(), 0), Error);
  });
}

/// F3: what was divided on the way is not divided again.
TEST(Deterministic, F3MeansAreNotAveragedAgain) {
  run_local_ranks(1, [](std::unique_ptr<ProcessGroup> world) {
    Training training(std::move(world), {.deterministic = false});
    try {
      average_grads(training.root(), 2);
      ADD_FAILURE() << "expected a ConfigError";
    } catch (const ConfigError& e) {
      EXPECT_THAT(e.what(), ::testing::HasSubstr("the gradients are means already"));
    }
  });
}

}  // namespace
}  // namespace mica::optim
