// SPDX-License-Identifier: Apache-2.0
#include "kernels_testing.hpp"

namespace mica::testing {
namespace {

class Elementwise : public KernelsTest {
 protected:
  /// One elementwise call on a part of its range: parts[i] are slices of the operands.
  using Call = std::function<void(const std::vector<TensorView>& parts, std::int64_t begin)>;

  /// The whole range in one call, then every split of it in two: the last operand must come out with the same bits.
  void expect_same_bits_for_every_split(const char* what, const std::vector<HostTensor>& operands, const Call& call) {
    const std::int64_t n = operands.front().numel();
    const auto run = [&](std::int64_t split) {
      std::vector<HostTensor> copies = operands;
      for (const auto& [begin, end] : {std::pair{std::int64_t{0}, split}, std::pair{split, n}}) {
        std::vector<TensorView> parts;
        for (HostTensor& t : copies) parts.push_back(t.view().slice(begin, end - begin));
        call(parts, begin);
      }
      stream_->synchronize();
      return copies;
    };
    const std::vector<HostTensor> whole = run(n);
    for (std::int64_t split = 0; split < n; ++split) {
      const std::vector<HostTensor> parts = run(split);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        ASSERT_TRUE(parts[i].same_bits(whole[i])) << what << " split at " << split << ", operand " << i;
      }
    }
  }
};

constexpr std::int64_t kNumels[] = {0, 1, 3, 7, 17, 33, 65, 129, 50000};
constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

TEST_P(Elementwise, AddIsTheOracles) {
  for (const std::int64_t n : kNumels) {
    for (const DType type : kFloats) {
      HostTensor a = HostTensor::random({n}, type, 1), b = HostTensor::random({n}, type, 2);
      Pair y({n}, type), in_place(a);
      both([&](Kernels& kernels, bool r) {
        kernels.add(*stream_, a, b, y.of(r));
        kernels.add(*stream_, in_place.of(r), b, in_place.of(r));
      });
      EXPECT_TRUE(y.near(0)) << n << " " << dtype_name(type);
      EXPECT_TRUE(in_place.tested.same_bits(y.tested));
    }
  }
}

TEST_P(Elementwise, ScaleAndCopyAreTheOraclesInAnyPairOfDtypes) {
  for (const std::int64_t n : {1, 17, 129, 50000}) {
    for (const DType from : kFloats) {
      for (const DType to : kFloats) {
        HostTensor x = HostTensor::random({n}, from, 1);
        Pair scaled({n}, to), added(HostTensor::random({n}, to, 2)), copied({n}, to);
        both([&](Kernels& kernels, bool r) {
          kernels.scale(*stream_, x, 0.3, scaled.of(r), Write::overwrite);
          kernels.scale(*stream_, x, 0.3, added.of(r), Write::accumulate);
          kernels.copy(*stream_, x, copied.of(r));
        });
        // 0.3 is itself rounded to f32.
        EXPECT_TRUE(scaled.near(0x1p-24)) << n << " " << dtype_name(from) << " to " << dtype_name(to);
        EXPECT_TRUE(added.near(0x1p-22)) << n << " " << dtype_name(from) << " to " << dtype_name(to);
        EXPECT_TRUE(copied.tested.same_bits(copied.reference)) << n << " " << dtype_name(from) << " to " << dtype_name(to);
      }
    }
  }
}

TEST_P(Elementwise, CopyMovesAnyBytesAndRefusesOtherConversions) {
  for (const DType type : {DType::f64, DType::i64, DType::i32, DType::u16, DType::u8}) {
    HostTensor x = HostTensor::random({33}, type, 1, 0, 200);
    HostTensor y({33}, type);
    tested_->copy(*stream_, x, y);
    stream_->synchronize();
    EXPECT_TRUE(y.same_bits(x)) << dtype_name(type);
  }
  HostTensor x({4}, DType::i32), y({4}, DType::f32), shorter({3}, DType::i32);
  EXPECT_THROW(tested_->copy(*stream_, x, y), Error);
  EXPECT_THROW(tested_->copy(*stream_, x, shorter), Error);
}

/// Blocks of every length and place, one after the other and with gaps, more of them than a launch takes.
TEST_P(Elementwise, CopyBlocksIsTheOracles) {
  for (const DType type : {DType::f32, DType::bf16, DType::f64, DType::u8}) {
    constexpr std::int64_t kNumel = 30000;
    HostTensor src = HostTensor::random({kNumel}, type, 1, 0, 200);
    const HostTensor before = HostTensor::random({kNumel}, type, 2, 0, 200);
    std::vector<BlockCopy> blocks{{.src = 1, .dst = 8000, .numel = 9001},  // longer than a chunk, at an odd place
                                  {.src = 16, .dst = 0, .numel = 64, .count = 40, .src_stride = 128, .dst_stride = 64},
                                  {.src = 3, .dst = 2600, .numel = 5, .count = 300, .src_stride = 11, .dst_stride = 7},
                                  {.src = 0, .dst = 17100, .numel = 2500, .count = 3, .src_stride = 2501, .dst_stride = 2504},
                                  {.src = 5, .dst = 5, .numel = 0, .count = 4},
                                  {.src = 5, .dst = 5, .numel = 4, .count = 0}};
    for (std::int64_t i = 0; i < 100; ++i) blocks.push_back({.src = 29000 - i, .dst = 25000 + 40 * i, .numel = i % 38});
    Pair dst(before), back(before);
    both([&](Kernels& kernels, bool r) {
      std::vector<BlockCopy> list = blocks;
      kernels.copy_blocks(*stream_, src, dst.of(r), list);
      for (BlockCopy& block : list) block = block.reversed();
      kernels.copy_blocks(*stream_, dst.of(r), back.of(r), list);
      list.assign(list.size(), BlockCopy{});  // they were taken at the call
    });
    EXPECT_TRUE(dst.tested.same_bits(dst.reference)) << dtype_name(type);
    EXPECT_TRUE(back.tested.same_bits(back.reference)) << dtype_name(type);
    EXPECT_FALSE(dst.tested.same_bits(before));
  }
  HostTensor x = random({10}, 1), y = random({10}, 2);
  const BlockCopy too_far{.src = 0, .dst = 1, .numel = 5, .count = 2, .src_stride = 5, .dst_stride = 5};
  EXPECT_THROW(tested_->copy_blocks(*stream_, x, y, std::span(&too_far, 1)), Error);
}

TEST_P(Elementwise, ScaleByReadsItsFactorOnTheStream) {
  for (const double factor : {1.0, 0.5, 0.0}) {
    HostTensor f({1}, DType::f32);
    Pair x(random({129}, 1));
    both([&](Kernels& kernels, bool r) {
      kernels.fill(*stream_, f, factor);
      kernels.scale_by(*stream_, x.of(r), f);
    });
    EXPECT_TRUE(x.near(0)) << factor;
  }
  HostTensor nan = HostTensor::of(DType::f32, {std::numeric_limits<double>::quiet_NaN()}), one = HostTensor::of(DType::f32, {1});
  tested_->scale_by(*stream_, nan, one);
  stream_->synchronize();
  EXPECT_TRUE(std::isnan(nan.at(0))) << "a factor of 1 touches nothing";
}

TEST_P(Elementwise, FillsAnyDtype) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::i32, DType::u16, DType::u8}) {
    HostTensor x({50001}, type);
    tested_->fill(*stream_, x, 3);
    stream_->synchronize();
    for (std::int64_t i = 0; i < x.numel(); ++i) ASSERT_EQ(x.at(i), 3) << dtype_name(type) << " " << i;
  }
}

TEST_P(Elementwise, NormalsAreTheOraclesBits) {
  const RandomKey key{.seed = 42, .name_hash = hash_name("w")};
  for (const std::int64_t begin : {0, 1, 5, 1000003}) {
    Pair x({20001}, dtype());
    both([&](Kernels& kernels, bool r) { kernels.fill_normal(*stream_, x.of(r), key, begin, 0.02); });
    EXPECT_TRUE(x.tested.same_bits(x.reference)) << begin;
  }
}

TEST_P(Elementwise, BitsAreTheSameForEverySplitOfTheRange) {
  const std::int64_t n = 67;
  const HostTensor a = random({n}, 1, -4, 4), b = random({n}, 2), out = fresh({n}), start = random({n}, 3);
  for (const Activation f : {Activation::gelu, Activation::relu, Activation::silu, Activation::tanh}) {
    expect_same_bits_for_every_split("activation", {a, out}, [&](auto& p, std::int64_t) { tested_->activation(*stream_, f, p[0], p[1]); });
    expect_same_bits_for_every_split("activation_backward", {a, b, out},
                                     [&](auto& p, std::int64_t) { tested_->activation_backward(*stream_, f, p[0], p[1], p[2]); });
  }
  expect_same_bits_for_every_split("add", {a, b, out}, [&](auto& p, std::int64_t) { tested_->add(*stream_, p[0], p[1], p[2]); });
  expect_same_bits_for_every_split("scale", {a, start},
                                   [&](auto& p, std::int64_t) { tested_->scale(*stream_, p[0], 0.3, p[1], Write::accumulate); });
  for (const DType to : kFloats) {
    expect_same_bits_for_every_split("copy", {a, HostTensor({n}, to)}, [&](auto& p, std::int64_t) { tested_->copy(*stream_, p[0], p[1]); });
  }
  HostTensor factor = HostTensor::of(DType::f32, {0.37});
  expect_same_bits_for_every_split("scale_by", {a}, [&](auto& p, std::int64_t) { tested_->scale_by(*stream_, p[0], factor); });
  expect_same_bits_for_every_split("fill", {out}, [&](auto& p, std::int64_t) { tested_->fill(*stream_, p[0], 0.1); });
  const RandomKey key{.seed = 42, .name_hash = hash_name("w")};
  expect_same_bits_for_every_split("fill_normal", {out},
                                   [&](auto& p, std::int64_t begin) { tested_->fill_normal(*stream_, p[0], key, begin, 0.02); });
}

TEST_P(Elementwise, OptimizerBitsAreTheSameForEverySplitOfTheRange) {
  const std::int64_t n = 67;
  const auto f32 = [&](unsigned seed, double low = -1) { return HostTensor::random({n}, DType::f32, seed, low, 1); };
  expect_same_bits_for_every_split("adamw", {f32(1), f32(2), f32(3), f32(4, 0)}, [&](auto& p, std::int64_t) {
    tested_->adamw(*stream_, {.param = p[0],
                              .grad = p[1],
                              .exp_avg = p[2],
                              .exp_avg_sq = p[3],
                              .lr = 0.01,
                              .weight_decay = 0.1,
                              .step = 3,
                              .grad_scale = {},
                              .skip = {}});
  });
  expect_same_bits_for_every_split("sgd", {f32(1), f32(2), f32(3)}, [&](auto& p, std::int64_t) {
    tested_->sgd(*stream_, {.param = p[0],
                            .grad = p[1],
                            .momentum_buffer = p[2],
                            .lr = 0.1,
                            .momentum = 0.9,
                            .weight_decay = 0.01,
                            .nesterov = true,
                            .grad_scale = {},
                            .skip = {}});
  });
}

INSTANTIATE_TEST_SUITE_P(Lanes, Elementwise, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
