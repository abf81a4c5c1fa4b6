// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/inspect.hpp"

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "mica/data/token_file.hpp"
#include "mica/data/tokenize.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/hdf5.hpp"

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::error_of;
using test::SavedModel;
using test::ShardedOptions;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

/// Saves element_value(salt) of `units` on a mesh; `change` may alter rank-local arrays first.
void save_units(int num_ranks, const std::string& run, const test::Units& units, const ShardedOptions& options = {},
                const std::function<void(SavedModel&)>& change = {}) {
  run_local_ranks(num_ranks, [&](auto world) {
    SavedModel model(std::move(world), units, options);
    model.fill(3);
    if (change) change(model);
    model.save(run, 1);
  });
}

struct Ran {
  ExitCode code;
  std::string out;
};
Ran inspect(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  const ExitCode code = run_inspect(arguments, out, nullptr);
  return {code, out.str()};
}

void set_element(SavedModel& model, const std::string& parameter, std::int64_t element, float value) {
  for (const fsdp::Piece& p : model.root().pieces()) {
    if (model.root().parameter(p).full_name != parameter || element < p.begin || element >= p.end) continue;
    model.root().write_master(p).as<float>()[element - p.begin] = value;
  }
}

TEST(Diff, EqualAcrossRankCountsAndUnshardedUnits) {
  const TemporaryFolder folder;
  const test::Units units = test::odd_units();
  save_units(1, folder / "1", units);
  save_units(3, folder / "3", units);
  save_units(4, folder / "4x", units, {.unsharded = {1}});
  ShardedOptions hybrid{.shard_size = 2};
  hybrid.fsdp.strategy = fsdp::Strategy::hybrid_shard;
  save_units(4, folder / "2x2", units, hybrid);
  for (const char* other : {"1", "3", "4x", "2x2"}) {
    const Ran ran = inspect({"diff", folder / "1", folder / other});
    EXPECT_EQ(ran.code, ExitCode::done) << ran.out;
    EXPECT_THAT(ran.out, HasSubstr("15 of 15 arrays"));
  }
}

TEST(Diff, NamesWhatDiffersWhereAndByHowMuch) {
  const TemporaryFolder folder;
  save_units(1, folder / "a", test::small_units());
  save_units(3, folder / "b", test::small_units(), {}, [](SavedModel& model) {
    const float old = test::element_value("u0.weight", "master", 23, 3);
    set_element(model, "u0.weight", 23, old + 0.5F);  // row 3, column 2
    set_element(model, "u0.weight", 30, std::nextafter(test::element_value("u0.weight", "master", 30, 3), 100.0F));
    set_element(model, "u1.last", 1, std::numeric_limits<float>::quiet_NaN());
  });
  const DiffReport report = diff(folder / "a/checkpoints/step-00000001", folder / "b/checkpoints/step-00000001");
  EXPECT_FALSE(report.is_equal());
  ASSERT_EQ(report.entries.size(), 9U);
  EXPECT_EQ(report.num_equal(), 7);
  EXPECT_EQ(report.entries[0].parameter, "u0.weight");
  EXPECT_EQ(report.entries[0].num_different, 2);
  EXPECT_EQ(report.entries[0].max_difference, 0.5);
  EXPECT_EQ(report.entries[0].max_at, 23);
  EXPECT_EQ(report.entries[1].kind, "exp_avg");
  EXPECT_EQ(report.entries[1].result, DiffEntry::Result::equal);
  EXPECT_TRUE(std::isnan(report.entries[6].max_difference));
  const Ran text = inspect({"diff", folder / "a", folder / "b"});
  EXPECT_EQ(text.code, ExitCode::differs);
  EXPECT_THAT(text.out, AllOf(HasSubstr("u0.weight"), HasSubstr("2 of 35 elements differ, max |A-B| = 0.5 at [3, 2]"),
                              HasSubstr("max |A-B| = nan at [1]"), HasSubstr("7 of 9 arrays")));
  const Json json = Json::parse(inspect({"diff", "--json", folder / "a", folder / "b"}).out);
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["arrays"][0]["max_difference"], 0.5);
  EXPECT_EQ(json["arrays"][6]["max_difference"], "nan");
}

// What is in no array: step counts of single parameters, and further numbers of the run.
TEST(Diff, StepsOfParametersAndScalars) {
  const TemporaryFolder folder;
  const auto save_with = [&](const std::string& run, const std::map<std::string, std::int64_t>& steps,
                             const std::map<std::string, double>& scalars) {
    run_local_ranks(2, [&](auto world) {
      SavedModel model(std::move(world), test::small_units());
      model.fill(3);
      model.optimizer().set_parameter_steps(steps);
      SaveState state = model.state(1);
      state.scalars = scalars;
      save(run, state, model.comm());
    });
  };
  save_with(folder / "a", {{"u0.bias", 2}}, {{"loss_scale", 4}, {"loss_scale_growth_tracker", 1}});
  save_with(folder / "same", {{"u0.bias", 2}}, {{"loss_scale", 4}, {"loss_scale_growth_tracker", 1}});
  save_with(folder / "steps", {{"u1.last", 1}}, {{"loss_scale", 4}, {"loss_scale_growth_tracker", 1}});
  save_with(folder / "scalars", {{"u0.bias", 2}}, {{"loss_scale", 4.5}});
  EXPECT_EQ(inspect({"diff", folder / "a", folder / "same"}).code, ExitCode::done);
  const Ran steps = inspect({"diff", folder / "a", folder / "steps"});
  EXPECT_EQ(steps.code, ExitCode::differs);
  EXPECT_THAT(steps.out, AllOf(HasSubstr("u0.bias after 2 steps in A, 3 in B"), HasSubstr("u1.last after 3 steps in A, 1 in B")));
  const Ran scalars = inspect({"diff", folder / "a", folder / "scalars"});
  EXPECT_EQ(scalars.code, ExitCode::differs);
  EXPECT_THAT(scalars.out, AllOf(HasSubstr("loss_scale: 4 in A, 4.5 in B"), HasSubstr("loss_scale_growth_tracker: 1 in A, none in B"),
                                 HasSubstr("DIFFERENT")));
  const Json json = Json::parse(inspect({"diff", "--json", folder / "a", folder / "scalars"}).out);
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["scalar_differences"].size(), 2U);
}

// More elements than are compared at once, in pieces that end elsewhere.
TEST(Diff, LargeParametersInSeveralPieces) {
  const TemporaryFolder folder;
  const test::Units units{{{"weight", Shape{1009, 1153}, true}}};  // 1.16 M elements; 4 MiB are 1.05 M
  const auto parameters_only = [&](int num_ranks, const std::string& run, float last) {
    run_local_ranks(num_ranks, [&](auto world) {
      SavedModel model(std::move(world), units);
      model.fill(3);
      set_element(model, "u0.weight", 1163376, last);
      SaveState state = model.state(1);
      state.optimizer = nullptr;
      save(run, state, model.comm());
    });
  };
  parameters_only(1, folder / "1", 2.0F);
  parameters_only(3, folder / "3", 2.0F);
  parameters_only(3, folder / "other", 5.0F);
  EXPECT_EQ(inspect({"diff", folder / "1", folder / "3"}).code, ExitCode::done);
  EXPECT_THAT(inspect({"diff", folder / "1", folder / "other"}).out,
              HasSubstr("1 of 1,163,377 elements differ, max |A-B| = 3 at [1008, 1152]"));
}

TEST(Diff, OtherBitsOfTheSameNumberAreADifference) {
  const TemporaryFolder folder;
  save_units(1, folder / "a", test::small_units(), {}, [](SavedModel& m) { set_element(m, "u1.last", 2, 0.0F); });
  save_units(2, folder / "b", test::small_units(), {}, [](SavedModel& m) { set_element(m, "u1.last", 2, -0.0F); });
  const Ran ran = inspect({"diff", folder / "a", folder / "b"});
  EXPECT_EQ(ran.code, ExitCode::differs);
  EXPECT_THAT(ran.out, HasSubstr("1 of 3 elements differ, max |A-B| = 0 at [2]"));
}

TEST(Diff, ShapesAndWhatOnlyOneSideHas) {
  const TemporaryFolder folder;
  save_units(1, folder / "a", {{{"same", Shape{4}}, {"shaped", Shape{2, 3}}, {"gone", Shape{1}}}});
  run_local_ranks(1, [&](auto world) {
    SavedModel model(std::move(world), {{{"same", Shape{4}}, {"shaped", Shape{3, 2}}, {"fresh", Shape{1}}}}, {}, true);
    model.fill(3);
    model.save(folder / "b", 1);
  });
  const Ran ran = inspect({"diff", folder / "a", folder / "b"});
  EXPECT_EQ(ran.code, ExitCode::differs);
  EXPECT_THAT(ran.out, AllOf(HasSubstr("shape [2, 3] in A, [3, 2] in B"), HasSubstr("only in A"), HasSubstr("only in B"),
                             HasSubstr("momentum_buffer"), HasSubstr("adamw after 3 steps in A, sgd after 3 steps in B"),
                             HasSubstr("1 of 13 arrays")));
}

TEST(Inspect, ShowsStepMeshUnitsParametersAndBytes) {
  const TemporaryFolder folder;
  save_units(2, folder.path(), test::small_units());
  const Ran ran = inspect({folder.path()});
  EXPECT_EQ(ran.code, ExitCode::done);
  for (const char* part : {"step        1 (1,000 tokens seen", "type=weights", "43 in 2 units", "adamw after 3 steps: exp_avg, exp_avg_sq",
                           "2 ranks, full_shard: shard_size 2 x 1 replica", "run r0", "shard-r0-00000001-00001.h5",
                           "  u0.weight              35  [5, 7]", "[run]"}) {
    EXPECT_THAT(ran.out, HasSubstr(part));
  }
  const Json json = Json::parse(inspect({folder / "checkpoints", "--json"}).out);
  EXPECT_EQ(json["step"], 1);
  EXPECT_EQ(json["mesh"]["shard_size"], 2);
  EXPECT_EQ(json["units"][0]["parameters"][0]["shape"], Json::array({5, 7}));
  EXPECT_EQ(json["num_parameters"], 43);
  EXPECT_EQ(json["files"].size(), 2U);
}

TEST(Inspect, VerifySaysSoundOrWhere) {
  const TemporaryFolder folder;
  save_units(2, folder.path(), test::small_units());
  EXPECT_EQ(inspect({"verify", folder.path()}).code, ExitCode::done);
  std::filesystem::remove(folder / "checkpoints/step-00000001/shard-r0-00000001-00001.h5");
  const Ran ran = inspect({"verify", folder.path()});
  EXPECT_EQ(ran.code, ExitCode::differs);
  EXPECT_THAT(ran.out, AllOf(HasSubstr("shard-r0-00000001-00001.h5"), HasSubstr("DAMAGED in 1 place")));
  const Json json = Json::parse(inspect({"verify", "--json", folder.path()}).out);
  EXPECT_EQ(json["sound"], false);
  EXPECT_EQ(json["damage"].size(), 1U);
  EXPECT_THAT(error_of<CheckpointError>([&] { inspect({"diff", folder.path(), folder.path()}); }), HasSubstr("00001.h5"));
}

TEST(Inspect, HelpVersionAndMisuse) {
  EXPECT_THAT(inspect_help({"--help"}), AllOf(HasSubstr("mica-inspect diff A B"), HasSubstr("Exit status")));
  EXPECT_THAT(build_text(), AllOf(HasSubstr("checkpoint format 5"), HasSubstr("HDF5 1.")));
  EXPECT_THAT(error_of<ConfigError>([] { inspect({}); }), HasSubstr("CHECKPOINT takes one checkpoint, got 0"));
  EXPECT_THAT(error_of<ConfigError>([] { inspect({"diff", "a"}); }), HasSubstr("diff takes two checkpoints, got 1"));
  EXPECT_THAT(error_of<ConfigError>([] { inspect({"verify"}); }), HasSubstr("got 0"));
  EXPECT_THAT(error_of<ConfigError>([] { inspect({"--jsno", "x"}); }), HasSubstr("--jsno"));
  EXPECT_THAT(error_of<ConfigError>([] { inspect({"/proc/nowhere"}); }), HasSubstr("/proc/nowhere"));
  const TemporaryFolder folder;
  // As where permission is denied, which the superuser does not meet.
  std::ofstream(folder / "checkpoints") << "a file";
  EXPECT_THAT(error_of<ConfigError>([&] { inspect({folder.path()}); }), HasSubstr("checkpoints: cannot list the folder"));
  std::filesystem::remove(folder / "checkpoints");
  EXPECT_THAT(error_of<ConfigError>([&] { inspect({folder.path()}); }), HasSubstr("holds no checkpoint"));
}

// A file of more than 32 M tokens is not read whole when a run begins.
TEST(Inspect, VerifiesTokenFiles) {
  const TemporaryFolder folder;
  std::ofstream(folder / "t") << "0123456789";
  (void)data::tokenize_files(*data::make_tokenizer("bytes"), {{folder / "t"}, folder / "x.h5", 0.0, {}});
  const std::string path = folder / "x.train.h5";
  const Ran sound = inspect({"verify", path});
  EXPECT_EQ(sound.code, ExitCode::done);
  EXPECT_THAT(sound.out, HasSubstr("x.train.h5: every byte is as it was written; 20 bytes checked"));
  std::string bytes = io::read_file(path);
  bytes.at(bytes.find(std::string("5\0006\0", 4))) = '4';
  std::ofstream(path, std::ios::binary) << bytes;
  const Ran damaged = inspect({"verify", path});
  EXPECT_EQ(damaged.code, ExitCode::differs);
  EXPECT_THAT(damaged.out, AllOf(HasSubstr("x.train.h5: is damaged: its tokens do not match"), HasSubstr("DAMAGED in 1 place")));
  EXPECT_EQ(Json::parse(inspect({"verify", "--json", path}).out)["sound"], false);
  {
    auto own = io::Hdf5File::create(folder / "own.h5");
    (void)own.create_dataset(data::kTokensDataset, io::FileType::u16, {10});
    own.close();
  }
  EXPECT_THAT(error_of<ConfigError>([&] { (void)inspect({"verify", folder / "own.h5"}); }), HasSubstr("holds no checksum (tokens_crc32c)"));
  EXPECT_THAT(error_of<ConfigError>([&] {
                (void)inspect({"verify", folder / "t"});
              }),
              AllOf(HasSubstr("there is no " + (folder / "t.crc32c")), HasSubstr("nothing can be verified")));
}

}  // namespace
}  // namespace mica::checkpoint
