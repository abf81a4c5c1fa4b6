// SPDX-License-Identifier: Apache-2.0
// mica-convert reshard and consolidate: every bit stays, on any number of ranks.

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/checkpoint/diff.hpp"
#include "mica/checkpoint/inspect.hpp"
#include "mica/checkpoint/verify.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/hdf5.hpp"

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/convert_testing.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::convert;
using test::convert_error;
using test::SavedModel;
using test::ShardedOptions;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

std::string save_on(int num_ranks, const std::string& run, const test::Units& units, const ShardedOptions& options = {}) {
  std::string path;
  run_local_ranks(num_ranks, [&](auto world) {
    SavedModel model(std::move(world), units, options);
    model.fill(3);
    const std::string saved = model.save(run, 5).path;
    if (model.comm().rank() == 0) path = saved;
  });
  return path;
}

TEST(Reshard, F2_WritesWhatSoManyRanksWouldHaveWritten) {
  const TemporaryFolder folder;
  const test::Units units = test::odd_units();
  ShardedOptions per_parameter;
  per_parameter.fsdp.sharding = fsdp::Sharding::per_parameter;
  ShardedOptions hybrid{.shard_size = 2, .unsharded = {1}};
  hybrid.fsdp.strategy = fsdp::Strategy::hybrid_shard;
  const std::vector<std::string> sources{save_on(1, folder / "1", units), save_on(3, folder / "3p", units, per_parameter),
                                         save_on(4, folder / "2x2", units, hybrid)};
  int n = 0;
  for (const std::string& source : sources) {
    for (const int num_ranks : {1, 2, 3, 8}) {
      for (const char* sharding : {"flat", "per_parameter"}) {
        const std::string out = folder / fmt::format("out{}", n++);
        EXPECT_THAT(convert({"reshard", source, out, fmt::format("--ranks={}", num_ranks), fmt::format("--sharding={}", sharding)}),
                    HasSubstr("wrote 15 arrays"));
        EXPECT_THAT(verify(out).damage, IsEmpty());
        EXPECT_TRUE(diff(source, out).is_equal());
        // The very files, but for the run's id: resuming takes the short way.
        const bool is_flat = std::string(sharding) == "flat";
        const Manifest written = read_manifest(out);
        const Manifest expected =
            read_manifest(save_on(num_ranks, folder / fmt::format("expected{}", n), units, is_flat ? ShardedOptions{} : per_parameter));
        ASSERT_EQ(written.files.size(), expected.files.size());
        for (std::size_t f = 0; f < written.files.size(); ++f) {
          ASSERT_EQ(written.files[f].datasets.size(), expected.files[f].datasets.size());
          for (std::size_t d = 0; d < written.files[f].datasets.size(); ++d) {
            EXPECT_EQ(written.files[f].datasets[d].block_crcs, expected.files[f].datasets[d].block_crcs)
                << source << " to " << num_ranks << " " << sharding << ", file " << f << " " << written.files[f].datasets[d].path;
          }
        }
        EXPECT_EQ(written.step, 5);
        EXPECT_EQ(written.optimizer_steps, expected.optimizer_steps);
      }
    }
  }
}

TEST(Reshard, ADryRunAndARefusalWriteNothing) {
  const TemporaryFolder folder;
  const std::string source = save_on(2, folder / "run", test::small_units());
  EXPECT_THAT(convert({"reshard", source, folder / "out", "--ranks=3", "--dry-run"}), HasSubstr("would write 9 arrays"));
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_THAT(convert_error<ConfigError>({"reshard", source, folder / "out"}), HasSubstr("--ranks is ''"));
  EXPECT_THAT(convert_error<ConfigError>({"reshard", source, folder / "out", "--ranks=0"}), HasSubstr("--ranks is '0'"));
  EXPECT_THAT(convert_error<ConfigError>({"reshard", source, folder / "out", "--ranks=2", "--sharding=rows"}),
              HasSubstr("expected flat or per_parameter"));
  EXPECT_THAT(convert_error<ConfigError>({"reshard", source, source, "--ranks=2"}), HasSubstr("exists already"));
  EXPECT_FALSE(fs::exists(folder / "out.tmp"));
}

TEST(Reshard, DamageStopsItAndLeavesNothing) {
  const TemporaryFolder folder;
  const std::string source = save_on(2, folder / "run", test::small_units());
  fs::resize_file(source + "/" + read_manifest(source).files[1].name, 100);
  EXPECT_THAT(convert_error<DamagedCheckpointError>({"reshard", source, folder / "out", "--ranks=3"}), HasSubstr("the file has 100 bytes"));
  EXPECT_FALSE(fs::exists(folder / "out"));
  EXPECT_FALSE(fs::exists(folder / "out.tmp"));
}

TEST(Consolidate, F1_EveryArrayIsWholeAndPlain) {
  const TemporaryFolder folder;
  const test::Units units = test::odd_units();
  const std::string source = save_on(3, folder / "run", units);
  EXPECT_THAT(convert({"consolidate", folder / "run", folder / "all.h5"}), AllOf(HasSubstr("wrote 15 arrays"), HasSubstr("1 file")));
  const auto file = io::Hdf5File::open(folder / "all.h5");
  EXPECT_EQ(file.int_attribute("/", "step"), 5);
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const test::WeightSpec& spec : units[u]) {
      const std::string name = fmt::format("u{}.{}", u, spec.name);
      for (const std::string kind : {"master", "exp_avg", "exp_avg_sq"}) {
        const io::Hdf5Dataset dataset = file.open_dataset((kind == "master" ? "/" : "/optim/" + kind + "/") + name);
        EXPECT_TRUE(dataset.is_contiguous());
        ASSERT_EQ(dataset.dims(), std::vector<std::int64_t>(spec.shape.dims().begin(), spec.shape.dims().end()));
        std::vector<float> values(static_cast<std::size_t>(dataset.numel()));
        dataset.read(values.data(), dataset.bytes());
        const test::ElementValues expected(name, kind, 3);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i], expected.at(static_cast<std::int64_t>(i))) << name << " " << kind << " " << i;
        }
      }
    }
  }
  // Its checksum lies beside it.
  const auto verify_all = [&] {
    std::ostringstream out;
    const ExitCode code = run_inspect({"verify", folder / "all.h5"}, out, nullptr);
    return std::pair(code, out.str());
  };
  EXPECT_EQ(verify_all().first, ExitCode::done) << verify_all().second;
  std::string bytes = io::read_file(folder / "all.h5");
  const std::string sound = bytes;
  for (const std::size_t at : {std::size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
    bytes = sound;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    io::write_file_atomically(folder / "all.h5", bytes);
    EXPECT_EQ(verify_all().first, ExitCode::differs) << "byte " << at;
    EXPECT_THAT(verify_all().second, AllOf(HasSubstr("all.h5: is damaged"), HasSubstr("DAMAGED in 1 place")));
  }
  io::write_file_atomically(folder / "all.h5", sound.substr(1));
  EXPECT_THAT(verify_all().second, HasSubstr("it is truncated or was replaced"));
  EXPECT_THAT(convert({"consolidate", folder / "run", folder / "model.h5", "--optimizer=false"}), HasSubstr("wrote 5 arrays"));
  EXPECT_FALSE(io::Hdf5File::open(folder / "model.h5").exists("/optim"));
  EXPECT_THAT(convert_error<ConfigError>({"consolidate", source, folder / "all.h5"}), HasSubstr("exists already"));
  EXPECT_THAT(convert_error<ConfigError>({"consolidate", source, folder / "x.h5", "--optimizer=no"}), HasSubstr("expected true or false"));
}

}  // namespace
}  // namespace mica::checkpoint
