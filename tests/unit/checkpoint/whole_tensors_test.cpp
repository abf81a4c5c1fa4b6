// SPDX-License-Identifier: Apache-2.0
// What no unit holds: ignored parameters with their optimizer state, and module buffers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/async_saver.hpp"
#include "mica/checkpoint/convert.hpp"
#include "mica/checkpoint/diff.hpp"
#include "mica/checkpoint/inspect.hpp"
#include "mica/checkpoint/verify.hpp"
#include "mica/io/hdf5.hpp"

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::element_value;
using test::error_of;
using test::SavedModel;
using test::ShardedOptions;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// u0.weight may be ignored; u0 has buffers of several types, one a scalar, one empty.
test::Units whole_units() { return {{{"weight", Shape{7, 5}, true}, {"bias", Shape{7}}}, {{"last", Shape{11, 3}, true}}}; }
ShardedOptions meshes_of(bool ignores, bool per_parameter = false, int shard_size = 0) {
  ShardedOptions options{.shard_size = shard_size, .ignores_first = ignores};
  if (shard_size != 0) options.fsdp.strategy = fsdp::Strategy::hybrid_shard;
  options.fsdp.sharding = per_parameter ? fsdp::Sharding::per_parameter : fsdp::Sharding::flat;
  options.buffers = {{"mean", Shape{3}},
                     {"count", Shape{2}, DType::i64},
                     {"half", Shape{2, 2}, DType::bf16},
                     {"step", Shape{}, DType::i32},
                     {"none", Shape{0}, DType::u8}};
  return options;
}

struct WholeCase {
  int num_ranks;
  ShardedOptions options;
};
std::vector<WholeCase> whole_cases() {
  return {{1, meshes_of(true)},           {2, meshes_of(true)},  {3, meshes_of(true, true)},
          {4, meshes_of(true, false, 2)}, {2, meshes_of(false)}, {3, meshes_of(false, true)}};
}

std::string save_on(const WholeCase& how, const std::string& run, int salt = 7) {
  std::string path;
  run_local_ranks(how.num_ranks, [&](std::unique_ptr<ProcessGroup> world) {
    SavedModel model(std::move(world), whole_units(), how.options);
    model.fill(salt);
    const std::string at = model.save(run, 1).path;
    if (model.comm().rank() == 0) path = at;
  });
  return path;
}

TEST(WholeTensors, AreBitExactOnEveryMeshWhetherIgnoredThereOrNot) {
  for (const WholeCase& writer : whole_cases()) {
    const TemporaryFolder folder;
    const std::string path = save_on(writer, folder.path());
    ASSERT_THAT(verify(path).damage, IsEmpty());
    for (const WholeCase& reader : whole_cases()) {
      run_local_ranks(reader.num_ranks, [&](std::unique_ptr<ProcessGroup> world) {
        auto world2 = world->duplicate("expected");
        SavedModel loaded(std::move(world), whole_units(), reader.options);
        loaded.fill(8);
        SavedModel expected(std::move(world2), whole_units(), reader.options);
        expected.fill(7);
        EXPECT_THAT(loaded.load(path).notes, IsEmpty());
        EXPECT_EQ(loaded.bits(), expected.bits()) << writer.num_ranks << " to " << reader.num_ranks;
      });
    }
  }
}

TEST(WholeTensors, AreInShardRankZerosFileTheManifestAndTheIndex) {
  const TemporaryFolder folder;
  const std::string path = save_on({2, meshes_of(true)}, folder.path());
  const Manifest manifest = read_manifest(path);
  ASSERT_EQ(manifest.units.size(), 7U);
  EXPECT_EQ(manifest.num_parameters(), 35 + 7 + 33);
  const UnitEntry& weight = manifest.units[2];
  EXPECT_EQ(weight.name, "u0.weight");
  EXPECT_EQ(weight.role, UnitRole::ignored);
  EXPECT_EQ(weight.shard_numel, 35);
  const UnitEntry& step = manifest.units[6];
  EXPECT_EQ(step.name, "u0.step");
  EXPECT_EQ(step.role, UnitRole::buffer);
  EXPECT_EQ(step.dtype, DType::i32);
  EXPECT_EQ(step.parameters[0].shape, (Shape{1}));
  EXPECT_EQ(manifest.files[0].datasets.size(), 2U * 3 + 3 + 4);
  EXPECT_EQ(manifest.files[1].datasets.size(), 2U * 3);

  std::vector<std::int64_t> counts(2);
  {
    const auto index = io::Hdf5File::open(path + "/model.h5");
    const io::Hdf5Dataset of_weight = index.open_dataset("/optim/exp_avg/u0.weight");
    EXPECT_THAT(of_weight.dims(), ElementsAre(7, 5));
    std::vector<float> exp_avg(35);
    of_weight.read(exp_avg.data(), 140);
    EXPECT_EQ(exp_avg[34], element_value("u0.weight", "exp_avg", 34, 7));
    const io::Hdf5Dataset count = index.open_dataset("/u0.count");
    EXPECT_EQ(count.type(), io::FileType::i64);
    count.read(counts.data(), 16);
    EXPECT_EQ(counts[1], static_cast<std::int64_t>(element_value("u0.count", "master", 1, 7) * 1e12F));
    EXPECT_EQ(index.open_dataset("/u0.half").type(), io::FileType::bf16);
  }
  // What is missing reads as nothing that was ever counted.
  std::filesystem::remove(path + "/" + manifest.files[0].name);
  io::Hdf5File::open(path + "/model.h5").open_dataset("/u0.count").read(counts.data(), 16);
  EXPECT_EQ(counts[1], std::numeric_limits<std::int64_t>::min());
}

TEST(WholeTensors, GoThroughConversionsAndAreShown) {
  const TemporaryFolder folder;
  const std::string path = save_on({2, meshes_of(true)}, folder / "a");
  const std::string resharded = folder / "three";
  EXPECT_EQ(reshard(path, resharded, 3, "per_parameter", {}).num_tensors, 3 * 3 + 4);
  EXPECT_TRUE(diff(path, resharded).is_equal());
  EXPECT_EQ(read_manifest(resharded).units[3].dtype, DType::f32);
  EXPECT_EQ(read_manifest(resharded).units[4].dtype, DType::i64);
  run_local_ranks(2, [&](std::unique_ptr<ProcessGroup> world) {
    auto world2 = world->duplicate("expected");
    SavedModel loaded(std::move(world), whole_units(), meshes_of(true));
    SavedModel expected(std::move(world2), whole_units(), meshes_of(true));
    expected.fill(7);
    (void)loaded.load(resharded);
    EXPECT_EQ(loaded.bits(), expected.bits());
  });
  (void)consolidate(path, folder / "one.h5", true, {});
  const auto one = io::Hdf5File::open(folder / "one.h5");
  EXPECT_EQ(one.open_dataset("/u0.half").type(), io::FileType::bf16);
  std::vector<std::int64_t> counts(2);
  one.open_dataset("/u0.count").read(counts.data(), 16);
  EXPECT_EQ(counts[0], static_cast<std::int64_t>(element_value("u0.count", "master", 0, 7) * 1e12F));
  EXPECT_TRUE(one.exists("/optim/exp_avg_sq/u0.weight"));

  std::ostringstream text;
  (void)run_inspect({path}, text, nullptr);
  EXPECT_THAT(text.str(), AllOf(HasSubstr("75 in 2 units and 1 ignored parameter; 4 buffers"), HasSubstr("fp32 [7, 5], whole (ignored)"),
                                HasSubstr("int64 [2], whole (buffer)")));
  // Another count, another mean: named, with the distance.
  const std::string other = save_on({1, meshes_of(true)}, folder / "b", 9);
  const DiffReport report = diff(path, other);
  EXPECT_EQ(report.num_equal(), 0);
  const auto count = std::ranges::find(report.entries, "u0.count", &DiffEntry::parameter);
  ASSERT_NE(count, report.entries.end());
  EXPECT_EQ(count->num_different, 2);
  EXPECT_GT(count->max_difference, 1e9);
}

TEST(WholeTensors, AreInTheSnapshotOfABackgroundSave) {
  const TemporaryFolder folder;
  run_local_ranks(2, [&](std::unique_ptr<ProcessGroup> world) {
    auto background = world->duplicate("background");
    auto stream = make_cpu_stream("background", StreamMode::inlined);
    SavedModel model(std::move(world), whole_units(), meshes_of(true));
    model.fill(7);
    const auto expected = model.bits();
    AsyncSaver saver(make_group_comm(*background, *stream), model.weights().pool());
    SaveOptions options;
    std::atomic<bool> is_open{false};
    options.at_point = [&](std::string_view point) {
      if (point == "metadata written") is_open.wait(false);
    };
    saver.start(folder.path(), model.state(1), model.comm(), options);
    model.fill(8);
    is_open = true;
    is_open.notify_all();
    saver.wait();
    (void)model.load(folder / "checkpoints/step-00000001");
    EXPECT_EQ(model.bits(), expected);
    // Its bytes are counted: each rank's shards, and on shard rank 0 what is whole.
    const bool is_first = model.weights().device_mesh().mesh().shard_rank() == 0;
    const std::int64_t shards = 512 + 3 * 2 * 512;  // room to begin at a sector; of both units three kinds of up to 128
    const std::int64_t whole = 3 * 512 + 4 * 512;   // three kinds of 140 bytes; four buffers
    EXPECT_EQ(snapshot_bytes(model.root(), &model.optimizer()), shards + (is_first ? whole : 0));
  });
}

// Buffers are saved in their original type, whatever a forward sees.
TEST(WholeTensors, ABufferThatAForwardSeesInBf16IsSavedAsItWas) {
  const TemporaryFolder folder;
  ShardedOptions options = meshes_of(false);
  options.fsdp.mixed_precision.buffer_dtype = DType::bf16;
  run_local_ranks(1, [&](std::unique_ptr<ProcessGroup> world) {
    auto world2 = world->duplicate("fresh");
    SavedModel model(std::move(world), whole_units(), options);
    for (std::size_t i = 0; i < 3; ++i) {
      auto& weight = model.weights().weight(i == 2 ? 1 : 0, i == 2 ? 0 : i);
      weight.grad.assign(static_cast<std::size_t>(weight.parameter->shape.numel()), 1.0F);
    }
    model.weights().pass();
    const auto mean = [](SavedModel& of) { return of.root().buffers().entries()[0].buffer->data; };
    ASSERT_EQ(mean(model).dtype, DType::bf16);
    for (int i = 0; i < 3; ++i) mean(model).as<bf16>()[i] = bf16(1.5F + static_cast<float>(i));
    const std::string path = model.save(folder.path(), 1).path;
    EXPECT_EQ(read_manifest(path).units[2].dtype, DType::f32);
    SavedModel fresh(std::move(world2), whole_units(), options);
    (void)fresh.load(path);
    ASSERT_EQ(mean(fresh).dtype, DType::f32);
    EXPECT_EQ(mean(fresh).as<float>()[2], 3.5F);
    mean(model).as<bf16>()[2] = bf16(9.0F);
    (void)model.load(path);
    EXPECT_EQ(static_cast<float>(mean(model).as<bf16>()[2]), 3.5F);
  });
}

TEST(WholeTensors, AnIgnoredParameterInBf16IsWidenedAndRounded) {
  const TemporaryFolder folder;
  std::vector<bf16> low(35);
  for (std::size_t i = 0; i < low.size(); ++i) low[i] = bf16(static_cast<float>(i) / 8);
  const std::string path = save_on({1, meshes_of(false)}, folder / "f32");
  run_local_ranks(1, [&](std::unique_ptr<ProcessGroup> world) {
    auto world2 = world->duplicate("in a unit");
    SavedModel model(std::move(world), whole_units(), meshes_of(true));
    nn::Parameter& weight = *model.weights().weight(0, 0).parameter;
    weight.requires_grad = false;
    weight.data = {low.data(), Shape{7, 5}, DType::bf16};
    const std::string saved = model.save(folder / "bf16", 1).path;
    EXPECT_EQ(read_manifest(saved).units[2].dtype, DType::bf16);
    SavedModel wide(std::move(world2), whole_units(), meshes_of(false));
    EXPECT_THAT(wide.load(saved).notes, IsEmpty());
    EXPECT_EQ(wide.root().master(wide.root().pieces().front()).as<float>()[13], 13.0F / 8);
    // The other way some of it is lost, and said to be.
    EXPECT_THAT(model.load(path).notes, ElementsAre(HasSubstr("parameter u0.weight was fp32 and is bf16 here"),
                                                    HasSubstr("the optimizer state of 1 parameter is not loaded, u0.weight: frozen here")));
    EXPECT_EQ(low[3].bits, bf16(element_value("u0.weight", "master", 3, 7)).bits);
  });
}

TEST(WholeTensors, OthersThanTheModelsAreRefusedByName) {
  const TemporaryFolder folder;
  const std::string path = save_on({1, meshes_of(true)}, folder.path());
  const auto refused = [&](const ShardedOptions& options) {
    std::string text;
    run_local_ranks(1, [&](std::unique_ptr<ProcessGroup> world) {
      SavedModel model(std::move(world), whole_units(), options);
      text = error_of<CheckpointError>([&] { (void)model.load(path); });
    });
    return text;
  };
  ShardedOptions options = meshes_of(true);
  options.buffers.pop_back();
  options.buffers.pop_back();
  EXPECT_THAT(refused(options), HasSubstr("this one has no buffer u0.step"));
  options = meshes_of(true);
  options.buffers.push_back({"late", Shape{1}});
  EXPECT_THAT(refused(options), HasSubstr("it has no buffer u0.late"));
  options = meshes_of(true);
  options.buffers[1].dtype = DType::i32;
  EXPECT_THAT(refused(options), HasSubstr("buffer u0.count is int64 there and int32 here"));
  options = meshes_of(true);
  options.buffers[0].shape = Shape{4};
  EXPECT_THAT(refused(options), HasSubstr("buffer u0.mean has shape [3] there and [4] here"));
  run_local_ranks(1, [&](std::unique_ptr<ProcessGroup> world) {
    SavedModel model(std::move(world), whole_units(), meshes_of(true));
    model.weights().weight(0, 0).parameter->data = {};
    EXPECT_THAT(error_of<Error>([&] { model.save(folder.path(), 2); }), HasSubstr("the ignored parameter u0.weight [7, 5] has no data"));
  });
}

// A run that trains an ignored parameter goes on after a save as if nothing had been.
TEST(WholeTensors, TrainingGoesOnBitForBit) {
  const TemporaryFolder folder;
  run_local_ranks(2, [&](std::unique_ptr<ProcessGroup> world) {
    auto world2 = world->duplicate("resumed");
    const auto train = [](SavedModel& model, int first, int last) {
      for (int step = first; step < last; ++step) {
        model.root().zero_grad();
        int salt = 100 * step;
        for (const auto& [unit, i] : {std::pair{0, 0}, {0, 1}, {1, 0}}) {
          auto& weight = model.weights().weight(static_cast<std::size_t>(unit), static_cast<std::size_t>(i));
          weight.grad.resize(static_cast<std::size_t>(weight.parameter->shape.numel()));
          for (std::size_t e = 0; e < weight.grad.size(); ++e) {
            weight.grad[e] = element_value("grad", "x", static_cast<std::int64_t>(e), ++salt) - 8.0F;
          }
          if (unit == 0 && i == 0) weight.parameter->grad_written = false;
        }
        model.weights().pass();
        model.optimizer().step({.lr = 0.01});
      }
    };
    SavedModel whole(std::move(world), whole_units(), meshes_of(true));
    whole.fill(1);
    whole.optimizer().set_num_steps(0);
    train(whole, 0, 3);
    const std::string path = whole.save(folder.path(), 3).path;
    const auto saved = whole.bits();
    train(whole, 3, 6);
    ASSERT_NE(whole.bits(), saved);
    SavedModel resumed(std::move(world2), whole_units(), meshes_of(true));
    (void)resumed.load(path);
    EXPECT_EQ(resumed.bits(), saved);
    train(resumed, 3, 6);
    EXPECT_EQ(resumed.bits(), whole.bits());
  });
}

}  // namespace
}  // namespace mica::checkpoint
