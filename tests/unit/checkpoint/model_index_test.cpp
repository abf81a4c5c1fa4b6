// SPDX-License-Identifier: Apache-2.0
// model.h5: the whole model as other programs see it.

#include "../../../src/checkpoint/model_index.hpp"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/io/atomic_file.hpp"
#include "mica/io/hdf5.hpp"

#include "support/paths.hpp"
#include "support/temporary_folder.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::SavedModel;
using test::ShardedOptions;
using test::TemporaryFolder;
namespace fs = std::filesystem;

TEST(ModelIndex, BoxesCoverARangeOnceInOrder) {
  for (const Shape& shape : {Shape{17}, Shape{5, 7}, Shape{3, 4, 5}, Shape{2, 3, 1, 4}, Shape{2, 1, 3, 2, 2}}) {
    for (std::int64_t begin = 0; begin < shape.numel(); ++begin) {
      for (std::int64_t end = begin; end <= shape.numel(); ++end) {
        const std::vector<io::Hdf5Box> boxes = boxes_of_range(shape, begin, end);
        ASSERT_LE(boxes.size(), 2 * shape.num_dims() - 1);
        std::int64_t at = begin;  // the flat index of the next element, box after box
        for (const io::Hdf5Box& box : boxes) {
          std::vector<std::int64_t> index = box.start;
          for (std::int64_t numel = 1, i = 0;; ++i) {
            if (i == 0) {
              for (const std::int64_t n : box.count) numel *= n;
            }
            if (i == numel) break;
            std::int64_t flat = 0;
            for (std::size_t d = 0; d < shape.num_dims(); ++d) flat = flat * shape[d] + index[d];
            ASSERT_EQ(flat, at++) << shape.to_string() << " [" << begin << ", " << end << ")";
            for (std::size_t d = shape.num_dims(); d-- > 0;) {
              if (++index[d] < box.start[d] + box.count[d]) break;
              index[d] = box.start[d];
            }
          }
        }
        ASSERT_EQ(at, end);
      }
    }
  }
}

struct Case {
  int num_ranks;
  ShardedOptions options;
};

/// Expects what SavedModel::fill(salt) wrote.
void expect_values(const io::Hdf5File& file, const test::Units& units, int salt) {
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const test::WeightSpec& spec : units[u]) {
      const std::string name = fmt::format("u{}.{}", u, spec.name);
      for (const std::string kind : {"master", "exp_avg", "exp_avg_sq"}) {
        const io::Hdf5Dataset dataset = file.open_dataset((kind == "master" ? "/" : "/optim/" + kind + "/") + name);
        ASSERT_EQ(dataset.dims(), std::vector<std::int64_t>(spec.shape.dims().begin(), spec.shape.dims().end()));
        ASSERT_EQ(dataset.type(), io::FileType::f32);
        std::vector<float> values(static_cast<std::size_t>(dataset.numel()));
        dataset.read(values.data(), dataset.bytes());
        const test::ElementValues expected(name, kind, salt);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i], expected.at(static_cast<std::int64_t>(i))) << name << " " << kind << " " << i;
        }
      }
    }
  }
}

TEST(ModelIndex, F1_ShowsEveryParameterWholeWhateverTheRanks) {
  const test::Units units{{{"weight", Shape{13, 12}, true}, {"bias", Shape{13}}},
                          {{"tiny", Shape{1}}, {"four", Shape{2, 3, 12, 7}, true}},
                          {{"three", Shape{12, 3, 12}, true}}};
  ShardedOptions per_parameter;
  per_parameter.fsdp.sharding = fsdp::Sharding::per_parameter;
  ShardedOptions inner = per_parameter;
  inner.fsdp.shard_dims = {{.pattern = "*.weight", .dim = 1}, {.pattern = "*.four", .dim = 2}};
  ShardedOptions hybrid{.shard_size = 2};
  hybrid.fsdp.strategy = fsdp::Strategy::hybrid_shard;
  const std::vector<Case> cases{
      {1, {}}, {2, {}}, {3, {}}, {8, {}}, {3, per_parameter}, {8, per_parameter}, {4, inner}, {4, hybrid}, {4, {.unsharded = {1}}}};
  for (const Case& c : cases) {
    const TemporaryFolder folder;
    run_local_ranks(c.num_ranks, [&](auto world) {
      SavedModel model(std::move(world), units, c.options);
      model.fill(3);
      model.save(folder.path(), 1);
    });
    // It may be moved.
    fs::rename(folder / "checkpoints/step-00000001", folder / "elsewhere");
    const auto file = io::Hdf5File::open(folder / "elsewhere/model.h5");
    expect_values(file, units, 3);
    EXPECT_EQ(file.string_attribute("/", "format"), "mica checkpoint");
    EXPECT_EQ(file.int_attribute("/", "step"), 1);
  }
}

// Software that is not ours: Debian's python3-h5py.
TEST(ModelIndex, F1_H5pyReadsWhatMicaHolds) {
  const test::Units units{{{"one", Shape{101}}, {"two", Shape{13, 12}, true}},
                          {{"three", Shape{11, 3, 7}, true}, {"four", Shape{2, 3, 5, 7}, true}}};
  const TemporaryFolder folder;
  fs::create_directory(folder / "expected");
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const test::WeightSpec& spec : units[u]) {
      const std::string name = fmt::format("u{}.{}", u, spec.name);
      for (const std::string kind : {"master", "exp_avg", "exp_avg_sq"}) {
        std::ofstream out(folder / ("expected/" + (kind == "master" ? "@" : "@optim@" + kind + "@") + name), std::ios::binary);
        for (const std::int64_t dim : spec.shape.dims()) out << dim << ' ';
        out << '\n';
        const test::ElementValues values(name, kind, 3);
        for (std::int64_t i = 0; i < spec.shape.numel(); ++i) {
          const float value = values.at(i);
          out.write(reinterpret_cast<const char*>(&value), 4);
        }
      }
    }
  }
  std::string command =
      fmt::format("/usr/bin/python3 '{}/tests/unit/checkpoint/read_model_h5.py' '{}'", test::source_folder(), folder / "expected");
  ShardedOptions per_parameter;
  per_parameter.fsdp.sharding = fsdp::Sharding::per_parameter;
  for (int num_ranks = 1; num_ranks <= 8; ++num_ranks) {
    for (const ShardedOptions& options : {ShardedOptions{}, per_parameter}) {
      const std::string run = folder / fmt::format("{}{}", num_ranks, options.fsdp.sharding == fsdp::Sharding::flat ? "f" : "p");
      run_local_ranks(num_ranks, [&](auto world) {
        SavedModel model(std::move(world), units, options);
        model.fill(3);
        model.save(run, 1);
      });
      command += fmt::format(" '{}/checkpoints/step-00000001/model.h5'", run);
    }
  }
  const std::string log = folder / "log";
  ASSERT_EQ(std::system((command + " > '" + log + "' 2>&1").c_str()), 0) << io::read_file(log);
  EXPECT_EQ(io::read_file(log), "equal: 12 datasets in 16 files\n");
}

TEST(ModelIndex, AMissingShardReadsAsNaN) {
  const TemporaryFolder folder;
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.fill(3);
    model.save(folder.path(), 1);
  });
  const std::string path = folder / "checkpoints/step-00000001";
  fs::remove(path + "/shard-r0-00000001-00001.h5");
  // Unit u0: weight 35, gap to 64, bias 5: the weight is rank 0's, the bias rank 1's. u1: 2 of 3 elements are rank 0's.
  const auto file = io::Hdf5File::open(path + "/model.h5");
  std::vector<float> bias(5), last(3);
  file.open_dataset("/u0.bias").read(bias.data(), 20);
  file.open_dataset("/u1.last").read(last.data(), 12);
  for (const float value : bias) EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(last[1], test::element_value("u1.last", "master", 1, 3));
  EXPECT_TRUE(std::isnan(last[2]));
}

}  // namespace
}  // namespace mica::checkpoint
