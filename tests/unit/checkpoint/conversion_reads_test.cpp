// SPDX-License-Identifier: Apache-2.0
// What conversions and comparisons read of a checkpoint: every block about once, however its shards are cut.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "mica/checkpoint/convert.hpp"
#include "mica/checkpoint/diff.hpp"
#include "mica/checkpoint/init_from.hpp"
#include "mica/checkpoint/state_dict_files.hpp"
#include "mica/io/raw_file.hpp"

#include "support/temporary_folder.hpp"
#include "unit/checkpoint/bytes_read.hpp"
#include "unit/checkpoint/convert_testing.hpp"
#include "unit/checkpoint/hf_testing.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::convert;
using test::SavedModel;
using test::ShardedOptions;
using test::TemporaryFolder;
using ::testing::HasSubstr;

/// Bytes that this process reads from files in an action, as the system counts them.
template <class Action>
std::int64_t bytes_read_in(Action action) {
  const std::int64_t before = test::bytes_read_by_process();
  action();
  return test::bytes_read_by_process() - before;
}

struct Sizes {
  std::int64_t data = 0;  ///< of the datasets
  std::int64_t rest = 0;  ///< tables, HDF5's metadata, the manifest
};
Sizes sizes_of(const std::string& checkpoint) {
  const Manifest manifest = read_manifest(checkpoint);
  Sizes sizes{0, std::ssize(manifest_text(manifest))};
  for (const FileEntry& file : manifest.files) {
    sizes.rest += file.bytes;
    for (const DatasetEntry& dataset : file.datasets) {
      sizes.data += dataset.bytes;
      sizes.rest -= dataset.bytes;
    }
  }
  return sizes;
}

/// 1.2 times the data; each table is checked and then read.
std::int64_t allowed(const Sizes& sizes) { return sizes.data * 12 / 10 + 2 * sizes.rest; }

std::string save_on(int num_ranks, const std::string& run, const ShardedOptions& options) {
  const test::Units units{{{"weight", Shape{1021, 1280}, true}, {"bias", Shape{67}}}, {{"weight", Shape{641, 256}, true}}};
  run_local_ranks(num_ranks, [&](auto world) {
    SavedModel model(std::move(world), units, options);
    model.fill(7);
    model.save(run, 1);
  });
  return run + "/checkpoints/step-00000001";
}

ShardedOptions per_parameter(int dim, const char* pattern = "*.weight") {
  ShardedOptions options;
  options.fsdp.sharding = fsdp::Sharding::per_parameter;
  options.fsdp.shard_dims = {{.pattern = pattern, .dim = dim}};
  return options;
}

struct Cut {
  const char* name;
  ShardedOptions options;
};
class Of64Ranks : public ::testing::TestWithParam<Cut> {
 protected:
  TemporaryFolder folder_;
  const std::string path_ = save_on(64, folder_ / "run", GetParam().options);
  const Sizes sizes_ = sizes_of(path_);
};

TEST_P(Of64Ranks, ConsolidateReadsEveryBlockOnce) {
  const std::string out = folder_ / "all.h5";
  const std::int64_t bytes = bytes_read_in([&] { convert({"consolidate", path_, out}); });
  const std::int64_t for_its_checksum = io::RawFile::open_for_reading(out).file_bytes();
  EXPECT_LE(bytes - for_its_checksum, allowed(sizes_));
  EXPECT_GE(bytes - for_its_checksum, 3 * 4 * read_manifest(path_).num_parameters());
}

TEST_P(Of64Ranks, ReshardReadsEveryBlockOnce) {
  for (const char* sharding : {"", "flat", "per_parameter"}) {
    for (const int num_ranks : {4, 16, 80}) {
      if (*sharding == '\0' && num_ranks > 64) continue;  // columns: below
      std::vector<std::string> arguments{"reshard", path_, folder_ / fmt::format("{}{}", sharding, num_ranks),
                                         fmt::format("--ranks={}", num_ranks)};
      if (*sharding != '\0') arguments.push_back(fmt::format("--sharding={}", sharding));
      const std::int64_t bytes = bytes_read_in([&] { convert(arguments); });
      EXPECT_LE(bytes - sizes_of(arguments[2]).rest, allowed(sizes_)) << sharding << " on " << num_ranks;
      EXPECT_TRUE(diff(path_, arguments[2]).is_equal()) << sharding << " on " << num_ranks;
    }
  }
}

TEST_P(Of64Ranks, DiffReadsEveryBlockOnce) {
  const std::string other = save_on(5, folder_ / "other", {});
  for (const std::string& first : {path_, other}) {
    const std::string& second = first == path_ ? other : path_;
    const std::int64_t bytes = bytes_read_in([&] { EXPECT_TRUE(diff(first, second).is_equal()); });
    EXPECT_LE(bytes, allowed(sizes_) + allowed(sizes_of(other)));
  }
}

TEST_P(Of64Ranks, StateDictsReadEveryBlockOnce) {
  const std::int64_t bytes = bytes_read_in([&] {
    (void)read_state_dict(path_);
    (void)read_optim_state_dict(path_);
  });
  EXPECT_LE(bytes, sizes_.data * 12 / 10 + 2 * 2 * sizes_.rest);
}

INSTANTIATE_TEST_SUITE_P(Cut, Of64Ranks,
                         ::testing::Values(Cut{"by_rows", per_parameter(0)}, Cut{"by_columns", per_parameter(1)}, Cut{"flat", {}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ConversionReads, HfExportOfColumnsReadsEveryBlockOnce) {
  constexpr int kRanks = 24;
  const TemporaryFolder folder;
  for (const std::string name : {"gpt2", "llama"}) {
    const HfModel model = read_hf_model(test::hf_reference(name));
    run_local_ranks(kRanks, [&](std::unique_ptr<ProcessGroup> world) {
      const char* matrices = name == "gpt2" ? "*.c_*.weight" : "*.self_attn.*.weight";
      test::ShardedHfModel sharded(std::move(world), model, per_parameter(1, matrices).fsdp);
      const auto comm = make_group_comm(sharded.device_mesh.metrics_group(), sharded.device_mesh.compute());
      (void)init_from(test::hf_reference(name), model.keys.all(), sharded.root(), *comm);
      SaveState state{.root = &sharded.root(), .run_id = "r0", .step = 1};
      state.model = model.keys.all();
      save(folder / name, state, *comm);
    });
    const std::string path = folder / name + "/checkpoints/step-00000001";
    const std::string out = folder / (name + "-hf");
    const std::int64_t bytes = bytes_read_in([&] { convert({"hf-export", path, out}); });
    std::int64_t for_checksums = 0;
    for (const auto& each : std::filesystem::directory_iterator(out)) for_checksums += static_cast<std::int64_t>(each.file_size());
    EXPECT_LE(bytes - for_checksums, allowed(sizes_of(path))) << name;
    EXPECT_EQ(test::tensors_of_folder(out), test::tensors_of_folder(test::hf_reference(name))) << name;
  }
}

// Shards that are cut finer along an inner dim: what is passed by is read a second time, and no more often.
TEST(ConversionReads, MoreColumnsReadABlockTwiceAtMost) {
  const TemporaryFolder folder;
  const std::string path = save_on(4, folder / "run", per_parameter(1));
  const std::int64_t bytes = bytes_read_in([&] { convert({"reshard", path, folder / "out", "--ranks=64"}); });
  const Sizes sizes = sizes_of(path);
  EXPECT_LE(bytes - sizes_of(folder / "out").rest, sizes.data * 2 + 2 * sizes.rest);
  EXPECT_TRUE(diff(path, folder / "out").is_equal());
}

/// While it lives, this process may have so many files open.
class FewerFiles {
 public:
  explicit FewerFiles(rlim_t most) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit fewer{most, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &fewer), 0);
  }
  ~FewerFiles() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }
  FewerFiles(const FewerFiles&) = delete;
  FewerFiles& operator=(const FewerFiles&) = delete;

 private:
  rlimit before_{};
};

// A job's limit of open files is often 1,024, less than large jobs have ranks.
TEST(ConversionReads, MoreFilesThanMayBeOpen) {
  const TemporaryFolder folder;
  const std::string path = save_on(2, folder / "run", {});
  convert({"reshard", path, folder / "many", "--ranks=320"});
  const std::int64_t bytes = bytes_read_in([&] {
    const FewerFiles fewer(300);
    EXPECT_TRUE(diff(path, folder / "many").is_equal());
  });
  EXPECT_LE(bytes, allowed(sizes_of(path)) + allowed(sizes_of(folder / "many")));
}

// Bytes are copied before their block has been checked as a whole: what is not wanted of it is checked as well.
TEST(ConversionReads, DamageInPaddingIsFound) {
  const TemporaryFolder folder;
  const std::string path = save_on(64, folder / "run", {});
  const Manifest manifest = read_manifest(path);
  for (const DatasetEntry& dataset : manifest.files.back().datasets) {  // the last shard ends with padding
    if (dataset.unit != 0) continue;
    auto file = io::RawFile::open_for_writing(path + "/" + manifest.files.back().name);
    const std::uint8_t damage = 1;
    file.write_at(dataset.offset + dataset.bytes - 1, &damage, 1);
  }
  const std::string reason = "bytes 0 to";
  const auto error_of_damage = [](auto action) { return test::error_of<DamagedCheckpointError>(action); };
  EXPECT_THAT(error_of_damage([&] { convert({"consolidate", path, folder / "all.h5"}); }), HasSubstr(reason));
  EXPECT_FALSE(std::filesystem::exists(folder / "all.h5"));
  EXPECT_THAT(error_of_damage([&] { convert({"reshard", path, folder / "out", "--ranks=3"}); }), HasSubstr(reason));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  EXPECT_THAT(error_of_damage([&] { (void)diff(path, path); }), HasSubstr(reason));
  EXPECT_THAT(error_of_damage([&] { (void)read_state_dict(path); }), HasSubstr(reason));
  EXPECT_THAT(error_of_damage([&] { (void)read_optim_state_dict(path); }), HasSubstr(reason));
}

TEST(ConversionReads, DamageInPaddingIsFoundByHfExport) {
  const TemporaryFolder folder;
  const std::string path = test::save_hf_model(test::hf_reference("gpt2"), 5, folder / "run");
  const FileEntry last = read_manifest(path).files.back();
  const DatasetEntry& dataset = last.datasets.front();
  const std::uint8_t damage = 1;
  io::RawFile::open_for_writing(path + "/" + last.name).write_at(dataset.offset + dataset.bytes - 1, &damage, 1);
  EXPECT_THAT(test::convert_error<DamagedCheckpointError>({"hf-export", path, folder / "out"}), HasSubstr(dataset.path));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

}  // namespace
}  // namespace mica::checkpoint
