// SPDX-License-Identifier: Apache-2.0
// Optimizer state below fp32 in checkpoints: as what it is, on any number of ranks, and converted into what a run keeps.
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/async_saver.hpp"
#include "mica/checkpoint/convert.hpp"
#include "mica/checkpoint/diff.hpp"
#include "mica/checkpoint/load.hpp"
#include "mica/checkpoint/save.hpp"
#include "mica/checkpoint/state_dict_files.hpp"
#include "mica/checkpoint/verify.hpp"
#include "mica/fsdp/deterministic.hpp"
#include "mica/io/hdf5.hpp"

#include "support/temporary_folder.hpp"
#include "unit/optim/sharded_weights.hpp"

namespace mica::checkpoint {
namespace {

using optim::MomentPrecision;
using test::ShardedOptions;
using test::ShardedWeights;
using test::TemporaryFolder;
using test::Values;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Odd sizes; more elements than a checkpoint's block has; one element for four ranks.
std::vector<std::vector<test::WeightSpec>> precision_units() {
  return {{{"weight", Shape{1307, 101}, true}, {"bias", Shape{1307}}}, {{"tiny", Shape{1}}, {"four", Shape{2, 3, 5, 7}, true}}};
}
const std::vector<std::string> kPrecisionNames{"u0.weight", "u0.bias", "u1.tiny", "u1.four"};

/// One rank of a run.
class PrecisionRun {
 public:
  PrecisionRun(std::unique_ptr<ProcessGroup> world, MomentPrecision precision, const ShardedOptions& options = {})
      : weights_(std::move(world), precision_units(), deterministic(options)),
        optimizer_(optim::make_adamw(weights_.root(), {.precision = precision})),
        comm_(make_group_comm(weights_.device_mesh().metrics_group(), weights_.device_mesh().compute())) {}

  /// Gradients of few bits: their mean over ranks is exact.
  void step(int number) {
    for (test::Weights* part : weights_.model().parts()) {
      for (test::Weights::Weight& w : part->weights()) {
        w.grad.resize(static_cast<std::size_t>(w.parameter->shape.numel()));
        for (std::size_t i = 0; i < w.grad.size(); ++i)
          w.grad[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(number) * 11) % 64) / 256;
      }
    }
    weights_.pass();
    fsdp::average_grads(weights_.root(), weights_.device_mesh().mesh().world_size());
    optimizer_->step({.lr = 0.01});
    weights_.root().zero_grad();
    ++step_;
  }
  SaveState state() { return {.root = &weights_.root(), .optimizer = optimizer_.get(), .run_id = "r0", .step = step_, .omp_threads = 1}; }
  std::string save(const std::string& run) { return checkpoint::save(run, state(), *comm_, {}).path; }
  LoadReport load(const std::string& path) {
    const Manifest manifest = open_checkpoint(path, *comm_);
    step_ = manifest.step;
    return checkpoint::load(path, manifest, {&weights_.root(), optimizer_.get(), 1}, *comm_);
  }
  std::vector<Values> masters() {
    std::vector<Values> all;
    for (const std::string& name : kPrecisionNames) all.push_back(weights_.gather(name));
    return all;
  }
  [[nodiscard]] ShardedWeights& weights() { return weights_; }
  [[nodiscard]] optim::Optimizer& optimizer() { return *optimizer_; }
  [[nodiscard]] const HostComm& comm() const { return *comm_; }

 private:
  static ShardedOptions deterministic(ShardedOptions options) {
    options.fsdp.root = fsdp::RootOptions{.deterministic = true};
    return options;
  }
  ShardedWeights weights_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<HostComm> comm_;
  std::int64_t step_ = 0;
};

/// Masters after `num_steps` on so many ranks; saves after `saved_after` of them.
std::vector<Values> masters_after(int ranks, MomentPrecision precision, int num_steps, const std::string& folder = "", int saved_after = 0,
                                  const ShardedOptions& options = {}) {
  std::vector<Values> masters;
  run_local_ranks(ranks, [&](auto world) {
    const int rank = world->rank();
    PrecisionRun run(std::move(world), precision, options);
    for (int t = 1; t <= num_steps; ++t) {
      run.step(t);
      if (t == saved_after) run.save(folder);
    }
    std::vector<Values> found = run.masters();
    if (rank == 0) masters = std::move(found);
  });
  return masters;
}

class PrecisionsOnDisk : public ::testing::TestWithParam<MomentPrecision> {
 protected:
  static std::vector<DType> dtypes() { return {optim::moment_dtype(GetParam(), "exp_avg"), optim::moment_dtype(GetParam(), "exp_avg_sq")}; }
};

// Also of a rank that has no element, where pieces begin anywhere, and of files cut in another way.
TEST_P(PrecisionsOnDisk, AResumeOnAnyNumberOfRanksHasTheSameBits) {
  const TemporaryFolder folder;
  const std::vector<Values> expected = masters_after(2, GetParam(), 4, folder.path(), 2);
  const std::string saved = folder / "checkpoints/step-00000002";
  const Manifest manifest = read_manifest(saved);
  EXPECT_EQ(manifest.state_dtypes, dtypes());
  EXPECT_THAT(verify(saved).damage, IsEmpty());
  ShardedOptions by_rows;
  by_rows.fsdp.sharding = fsdp::Sharding::per_parameter;
  for (const auto& [ranks, options] : std::vector<std::pair<int, ShardedOptions>>{{1, {}}, {2, {}}, {3, {}}, {4, {}}, {3, by_rows}}) {
    run_local_ranks(ranks, [&, &options = options](auto world) {
      PrecisionRun run(std::move(world), GetParam(), options);
      EXPECT_THAT(run.load(saved).notes, IsEmpty());
      for (int t = 3; t <= 4; ++t) run.step(t);
      EXPECT_EQ(run.masters(), expected) << run.comm().num_ranks() << " ranks";
    });
  }
}

TEST_P(PrecisionsOnDisk, AreConvertedBothWays) {
  const TemporaryFolder folder;
  static_cast<void>(masters_after(2, GetParam(), 2, folder / "narrow", 2));
  static_cast<void>(masters_after(2, MomentPrecision::fp32, 2, folder / "wide", 2));
  const std::string narrow = folder / "narrow/checkpoints/step-00000002", wide = folder / "wide/checkpoints/step-00000002";
  const std::string name(dtype_name(dtypes()[1]));
  for (const int ranks : {2, 3}) {
    run_local_ranks(ranks, [&](auto world) {
      PrecisionRun into_fp32(world->duplicate("fp32"), MomentPrecision::fp32), back(world->duplicate("back"), GetParam());
      PrecisionRun from_fp32(std::move(world), GetParam());
      EXPECT_THAT(into_fp32.load(narrow).notes,
                  ElementsAre(HasSubstr("its exp_avg is"), "its exp_avg_sq is " + name + ", converted to this run's fp32"));
      EXPECT_THAT(from_fp32.load(wide).notes,
                  ElementsAre(HasSubstr("its exp_avg is fp32"), "its exp_avg_sq is fp32, converted to this run's " + name));
      // fp32 has every value of the narrow formats, so that there and back is exact.
      const std::string again = into_fp32.save(folder / fmt::format("again{}", ranks));
      EXPECT_THAT(back.load(again).notes, ::testing::SizeIs(2));
      const std::string returned = back.save(folder / fmt::format("returned{}", ranks));
      if (back.comm().rank() == 0) {
        EXPECT_TRUE(diff(narrow, returned).is_equal());
        EXPECT_TRUE(diff(narrow, again).is_equal()) << "equal values, whatever the dtype";
      }
      for (PrecisionRun* run : {&into_fp32, &from_fp32}) run->step(3);
    });
  }
}

TEST_P(PrecisionsOnDisk, ToolsKeepThem) {
  const TemporaryFolder folder;
  static_cast<void>(masters_after(2, GetParam(), 2, folder.path(), 2));
  const std::string saved = folder / "checkpoints/step-00000002";
  static_cast<void>(reshard(saved, folder / "three", 3, "", {}));
  EXPECT_TRUE(diff(saved, folder / "three").is_equal());
  EXPECT_EQ(read_manifest(folder / "three").state_dtypes, dtypes());
  static_cast<void>(consolidate(saved, folder / "one.h5", true, {}));
  const auto file = io::Hdf5File::open(folder / "one.h5");
  EXPECT_EQ(file.open_dataset("/optim/exp_avg_sq/u0.bias").type(), io::file_type(dtypes()[1]));
  const auto index = io::Hdf5File::open(saved + "/model.h5");
  EXPECT_EQ(index.open_dataset("/optim/exp_avg/u0.bias").type(), io::file_type(dtypes()[0]));
}

TEST_P(PrecisionsOnDisk, ASnapshotHoldsThem) {
  const TemporaryFolder folder;
  run_local_ranks(2, [&](auto world) {
    PrecisionRun run(std::move(world), GetParam());
    run.step(1);
    const auto padded = [](std::int64_t bytes) { return (bytes + 511) / 512 * 512; };
    std::int64_t expected = 512;
    for (const fsdp::Unit* unit : run.weights().root().units()) {
      if (!unit->storage()) continue;
      const std::int64_t numel = unit->storage()->layout().shard_numel();
      expected += padded(4 * numel) + 2 * padded((GetParam() == MomentPrecision::bf16 ? 2 : 1) * numel);
    }
    EXPECT_EQ(snapshot_bytes(run.weights().root(), &run.optimizer()), expected);
  });
}

// Files of state dicts are fp32, also of what is whole on every rank.
TEST_P(PrecisionsOnDisk, FilesOfStateDictsAreFp32) {
  const TemporaryFolder folder;
  for (const fsdp::StateDictKind kind : {fsdp::StateDictKind::full, fsdp::StateDictKind::sharded}) {
    const std::string path = folder / (kind == fsdp::StateDictKind::full ? "full" : "sharded");
    run_local_ranks(2, [&](auto world) {
      PrecisionRun run(std::move(world), GetParam(), {.unsharded = {1}});
      run.step(1);
      static_cast<void>(save_state_dict(path, kind, run.state(), run.comm()));
    });
    EXPECT_THAT(read_manifest(path).state_dtypes, ElementsAre(DType::f32, DType::f32));
    EXPECT_THAT(verify(path).damage, IsEmpty());
    const optim::OptimStateDict dict = read_optim_state_dict(path, {});
    EXPECT_EQ(dict.state.at("u1.four").tensors.at("exp_avg").dtype(), DType::f32);
    // exp_avg after one step is a tenth of the gradient.
    const fsdp::StateTensor& exp_avg = dict.state.at("u1.four").tensors.at("exp_avg");
    for (std::int64_t i = 0; i < exp_avg.numel(); ++i) {
      const double g = static_cast<double>((i * 37 + 11) % 64) / 256;
      EXPECT_NEAR(static_cast<double>(exp_avg.view().as<float>()[i]), 0.1 * g, 0.25 * 0.1 * g + 1e-8) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PrecisionsOnDisk, ::testing::Values(MomentPrecision::bf16, MomentPrecision::int8),
                         [](const auto& p) { return std::string(optim::moment_precision_name(p.param)); });

}  // namespace
}  // namespace mica::checkpoint
