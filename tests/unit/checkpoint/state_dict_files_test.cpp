// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/state_dict_files.hpp"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/verify.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/hdf5.hpp"

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using fsdp::StateDictKind;
using test::error_of;
using test::SavedModel;
using test::ShardedOptions;
using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Rows that do not divide, fewer rows than ranks, an ignored parameter and buffers.
test::Units units() {
  return {{{"weight", Shape{7, 5}, true}, {"bias", Shape{7}}, {"tiny", Shape{1}}}, {{"four", Shape{5, 3, 2, 2}, true}}};
}
ShardedOptions options_of(bool ignores = true) {
  ShardedOptions options{.ignores_first = ignores};
  options.buffers = {{"mean", Shape{3}}, {"count", Shape{2}, DType::i64}};
  return options;
}

struct FilesCase {
  StateDictKind kind;
  int num_ranks;
  bool with_optimizer;
};

class StateDictFiles : public ::testing::TestWithParam<FilesCase> {};

/// What a checkpoint's files hold of the units' parameters that is not zero: padding is.
std::int64_t num_non_zeros(const std::string& path, const Manifest& manifest) {
  std::int64_t found = 0;
  for (const FileEntry& file : manifest.files) {
    for (const DatasetEntry& dataset : file.datasets) {
      if (dataset.kind != kMasterKind || manifest.units[static_cast<std::size_t>(dataset.unit)].is_whole()) continue;
      std::vector<float> values(static_cast<std::size_t>(dataset.bytes / 4));
      io::Hdf5File::open(path + "/" + file.name).open_dataset(dataset.path).read(values.data(), dataset.bytes);
      found += std::ranges::count_if(values, [](float value) { return value != 0; });
    }
  }
  return found;
}

/// A tensor of a state dict against what fill(7) gave it.
void expect_values(const std::string& name, const std::string& kind, const fsdp::StateTensor& tensor) {
  const Shape& whole = tensor.global_shape();
  const std::int64_t first = tensor.row_begin() * (whole.numel() / whole[0]);
  const test::ElementValues values(name, kind, 7);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    const float expected = values.at(first + i);
    if (tensor.dtype() == DType::i64) {
      ASSERT_EQ(tensor.view().as<std::int64_t>()[i], static_cast<std::int64_t>(expected * 1e12F)) << name;
    } else {
      ASSERT_EQ(tensor.view().as<float>()[i], expected) << name << " " << kind << " " << i;
    }
  }
}

TEST_P(StateDictFiles, AreWholeVerifiedAndLoadAnywhere) {
  const FilesCase& what = GetParam();
  const TemporaryFolder folder;
  const std::string path = folder / "dict";
  run_local_ranks(what.num_ranks, [&](std::unique_ptr<ProcessGroup> world) {
    SavedModel model(std::move(world), units(), options_of());
    model.fill(7);
    SaveState state = model.state(3);
    if (!what.with_optimizer) state.optimizer = nullptr;
    const SaveReport report = save_state_dict(path, what.kind, state, model.comm());
    EXPECT_EQ(report.path, path);
    EXPECT_EQ(report.shard_bytes > 0, what.kind != StateDictKind::full || model.comm().rank() == 0);
  });
  EXPECT_THAT(verify(path).damage, IsEmpty());
  const Manifest manifest = read_manifest(path);
  EXPECT_EQ(std::ssize(manifest.files), what.kind == StateDictKind::full ? 1 : what.num_ranks);
  EXPECT_EQ(manifest.units[0].layout, what.kind == StateDictKind::sharded && what.num_ranks > 1 ? "per_parameter 0,0" : "flat");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_EQ(num_non_zeros(path, manifest), 7 + 1 + 60);

  // Into another mesh and wrapping, where the first parameter is not ignored.
  ShardedOptions other = options_of(false);
  other.one_unit = true;
  run_local_ranks(2, [&](std::unique_ptr<ProcessGroup> world) {
    auto world2 = world->duplicate("expected");
    SavedModel loaded(std::move(world), units(), other);
    SavedModel expected(std::move(world2), units(), other);
    expected.fill(7);
    if (what.with_optimizer) {
      EXPECT_THAT(loaded.load(path).notes, IsEmpty());
      EXPECT_EQ(loaded.bits(), expected.bits());
    } else {
      loaded.fill(8);
      (void)load(path, manifest, {&loaded.root(), nullptr, 1}, loaded.comm());
      EXPECT_EQ(loaded.bits()[0], expected.bits()[0]);
    }
  });

  // Without a model: everything, and the rows of one of three ranks.
  const fsdp::StateDict dict = read_state_dict(path);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : dict) {
    names.push_back(name);
    EXPECT_TRUE(tensor.is_whole());
    expect_values(name, "master", tensor);
  }
  EXPECT_THAT(names, ElementsAre("u0.bias", "u0.count", "u0.mean", "u0.tiny", "u0.weight", "u1.four"));
  const fsdp::StateDict rows = read_state_dict(path, {.rank = 2, .num_ranks = 3});
  EXPECT_EQ(rows.at("u0.bias").shape(), (Shape{1}));
  EXPECT_EQ(rows.at("u0.tiny").shape(), (Shape{0}));
  EXPECT_EQ(rows.at("u1.four").shape(), (Shape{1, 3, 2, 2}));
  EXPECT_EQ(rows.at("u1.four").row_begin(), 4);
  EXPECT_TRUE(rows.at("u0.weight").is_whole()) << "it is ignored";
  for (const auto& [name, tensor] : rows) expect_values(name, "master", tensor);

  const optim::OptimStateDict optimizer = read_optim_state_dict(path);
  EXPECT_EQ(optimizer.empty(), !what.with_optimizer);
  for (const auto& [key, state] : optimizer.state) {
    EXPECT_EQ(state.scalars.at("step"), 7);
    EXPECT_EQ(state.tensors.size(), 2U);
    for (const auto& [kind, tensor] : state.tensors) expect_values(std::get<std::string>(key), kind, tensor);
  }
  EXPECT_EQ(optimizer.state.size(), what.with_optimizer ? 4U : 0U);
  if (what.with_optimizer) {
    EXPECT_THAT(optimizer.groups.at(0).parameters,
                ::testing::UnorderedElementsAre(optim::ParameterKey("u0.weight"), optim::ParameterKey("u0.bias"),
                                                optim::ParameterKey("u0.tiny"), optim::ParameterKey("u1.four")));
  }
}

std::vector<FilesCase> all_cases() {
  std::vector<FilesCase> all;
  for (const StateDictKind kind : {StateDictKind::full, StateDictKind::sharded, StateDictKind::local}) {
    for (const int num_ranks : {1, 2, 3}) {
      for (const bool with_optimizer : {false, true}) all.push_back({kind, num_ranks, with_optimizer});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Kinds, StateDictFiles, ::testing::ValuesIn(all_cases()), [](const auto& info) {
  return fmt::format("{}_{}{}", fsdp::state_dict_kind_name(info.param.kind), info.param.num_ranks,
                     info.param.with_optimizer ? "_optimizer" : "");
});

// What was read goes into a model of another world by the calls that take state dicts in memory.
TEST(StateDictFilesInMemory, LoadIntoAModel) {
  const TemporaryFolder folder;
  const std::string path = folder / "dict";
  run_local_ranks(3, [&](std::unique_ptr<ProcessGroup> world) {
    SavedModel model(std::move(world), units(), options_of(false));
    model.fill(7);
    (void)save_state_dict(path + "/", StateDictKind::sharded, model.state(3), model.comm());
  });
  run_local_ranks(2, [&](std::unique_ptr<ProcessGroup> world) {
    const ReadPart part{world->rank(), 2};
    auto world2 = world->duplicate("sharded");
    auto world3 = world->duplicate("expected");
    SavedModel expected(std::move(world3), units(), options_of(false));
    expected.fill(7);
    SavedModel full(std::move(world), units(), options_of(false));
    (void)fsdp::load_state_dict(full.weights().model(), read_state_dict(path));
    optim::load_optim_state_dict(full.optimizer(), read_optim_state_dict(path));
    EXPECT_EQ(full.bits(), expected.bits());
    SavedModel sharded(std::move(world2), units(), options_of(false));
    const fsdp::StateDictSettingsScope scope(sharded.weights().model(), fsdp::StateDictSettings::of(StateDictKind::sharded));
    (void)fsdp::load_state_dict(sharded.weights().model(), read_state_dict(path, part));
    optim::load_optim_state_dict(sharded.optimizer(),
                                 optim::local_from_sharded_optim_state_dict(read_optim_state_dict(path, part), sharded.optimizer()));
    EXPECT_EQ(sharded.bits(), expected.bits());
  });
}

TEST(StateDictFilesInMemory, AUnitThatIsNotShardedIsWholeInTheFirstFile) {
  const TemporaryFolder folder;
  for (const StateDictKind kind : {StateDictKind::full, StateDictKind::sharded, StateDictKind::local}) {
    const std::string path = folder / std::string(fsdp::state_dict_kind_name(kind));
    ShardedOptions options = options_of(false);
    options.unsharded = {1};
    run_local_ranks(2, [&](std::unique_ptr<ProcessGroup> world) {
      SavedModel model(std::move(world), units(), options);
      model.fill(7);
      (void)save_state_dict(path, kind, model.state(3), model.comm());
    });
    EXPECT_THAT(verify(path).damage, IsEmpty());
    for (const auto& [name, tensor] : read_state_dict(path)) expect_values(name, "master", tensor);
    run_local_ranks(3, [&](std::unique_ptr<ProcessGroup> world) {
      auto world2 = world->duplicate("expected");
      SavedModel loaded(std::move(world), units(), options_of(false)), expected(std::move(world2), units(), options_of(false));
      expected.fill(7);
      (void)loaded.load(path);
      EXPECT_EQ(loaded.bits(), expected.bits()) << fsdp::state_dict_kind_name(kind);
    });
  }
}

TEST(StateDictFilesInMemory, EachParameterHasItsOwnSteps) {
  const TemporaryFolder folder;
  const std::string path = folder / "dict";
  run_local_ranks(2, [&](std::unique_ptr<ProcessGroup> world) {
    SavedModel model(std::move(world), units(), options_of(false));
    model.fill(7);
    model.optimizer().set_parameter_steps({{"u0.weight", 7}, {"u0.bias", 3}, {"u0.tiny", 0}, {"u1.four", 7}});
    (void)save_state_dict(path, StateDictKind::full, model.state(3), model.comm());
  });
  const optim::OptimStateDict optimizer = read_optim_state_dict(path);
  EXPECT_EQ(optimizer.state.at("u0.weight").scalars.at("step"), 7);
  EXPECT_EQ(optimizer.state.at("u0.bias").scalars.at("step"), 3);
  EXPECT_FALSE(optimizer.state.contains("u0.tiny")) << "it was never stepped";
}

TEST(StateDictFilesInMemory, NothingIsOverwrittenAndEveryRankIsTold) {
  const TemporaryFolder folder;
  io::write_file_atomically(folder / "there", "mine");
  run_local_ranks(2, [&](std::unique_ptr<ProcessGroup> world) {
    SavedModel model(std::move(world), units(), options_of());
    model.fill(7);
    for (const auto& [path, says] : {std::pair{folder / "there", "exists already"}, {folder / "no/where", "no folder"}}) {
      EXPECT_THAT(error_of<ConfigError>([&] { (void)save_state_dict(path, StateDictKind::full, model.state(3), model.comm()); }),
                  HasSubstr(says));
    }
    (void)save_state_dict(folder / "new", StateDictKind::local, model.state(3), model.comm());
  });
  EXPECT_EQ(io::read_file(folder / "there"), "mine");
  EXPECT_EQ(error_of<ConfigError>([&] { (void)read_state_dict(folder / "nothing"); }).empty(), false);
}

}  // namespace
}  // namespace mica::checkpoint
