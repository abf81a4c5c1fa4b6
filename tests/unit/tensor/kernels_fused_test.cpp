// SPDX-License-Identifier: Apache-2.0
#include "kernels_testing.hpp"

// Operations that do in one pass what others do in several: what they compute, and that nothing depends on which is used.
namespace mica::testing {
namespace {

class Fused : public KernelsTest {
 protected:
  Fused() : KernelsTest({.fuse_epilogues = true}) {}
  /// What a rounding of numbers as large as these may move what is made of them by a GELU or its gradient.
  [[nodiscard]] double rounding_of(const HostTensor& numbers) const { return 1.2 * rounding(dtype()) * largest(numbers); }
};

struct ProductDims {
  std::int64_t m, n, k;
};
// Widths that are multiples of 8 and others: with a GELU cuBLASLt takes the former only, and it adds a bias to an unrounded product
// only if both operands' rows are a multiple of 16 bytes apart.
constexpr ProductDims kProducts[] = {{1, 1, 1},     {3, 8, 1},     {1, 33, 17},   {65, 16, 3}, {7, 24, 33},
                                     {129, 65, 33}, {33, 128, 65}, {33, 128, 64}, {7, 24, 40}};

TEST_P(Fused, ALinearLayerAndItsGeluAreTheOracles) {
  for (const auto [m, n, k] : kProducts) {
    HostTensor x = random({m, k}, 1), w = random({n, k}, 2), bias = random({n}, 3);
    Pair pre({m, n}, dtype()), y({m, n}, dtype()), y_alone({m, n}, dtype());
    Pair bare_pre({m, n}, dtype()), bare({m, n}, dtype()), bare_alone({m, n}, dtype());
    HostTensor apart_pre({m, n}, dtype()), apart({m, n}, dtype());
    both([&](Kernels& kernels, bool r) {
      kernels.linear_gelu(*stream_, x, w, bias, pre.of(r), y.of(r));
      kernels.linear_gelu(*stream_, x, w, bias, {}, y_alone.of(r));
      kernels.linear_gelu(*stream_, x, w, {}, bare_pre.of(r), bare.of(r));
      kernels.linear_gelu(*stream_, x, w, {}, {}, bare_alone.of(r));
      if (r) return;
      kernels.linear(*stream_, x, w, bias, apart_pre);
      kernels.activation(*stream_, Activation::gelu, apart_pre, apart);
    });
    const std::string what = fmt::format("{}x{}x{}", m, n, k);
    const double error = 1.2 * sum_error(k + 1) + 64 * 0x1p-24, of_bias = rounding_before_bias(k, bare_pre.reference);
    EXPECT_TRUE(pre.near(sum_error(k + 1) + of_bias)) << what;
    EXPECT_TRUE(bare_pre.near(sum_error(k))) << what;
    EXPECT_TRUE(y.near(error + 1.2 * of_bias + rounding_of(pre.reference))) << what;
    EXPECT_TRUE(bare.near(error + rounding_of(bare_pre.reference))) << what;
    EXPECT_TRUE(y_alone.tested.same_bits(y.tested)) << what;
    EXPECT_TRUE(bare_alone.tested.same_bits(bare.tested)) << what;
    EXPECT_TRUE(near(pre.tested, apart_pre, 2 * (sum_error(k + 1) + of_bias))) << what;
    EXPECT_TRUE(near(y.tested, apart, error + 2.4 * of_bias + rounding_of(apart_pre))) << what;
    EXPECT_TRUE(device::is_gpu() || pre.tested.same_bits(apart_pre)) << what << ": a CPU's bits are those of two calls";
    EXPECT_TRUE(device::is_gpu() || y.tested.same_bits(apart)) << what << ": a CPU's bits are those of two calls";
  }
}

TEST_P(Fused, TheGradientBeforeAGeluIsTheOracles) {
  for (const auto [m, k, n] : kProducts) {
    HostTensor dy = random({m, n}, 1), w = random({n, k}, 2), pre = random({m, k}, 3, -4, 4);
    Pair dpre({m, k}, dtype()), product({m, k}, dtype());
    HostTensor apart({m, k}, dtype());
    both([&](Kernels& kernels, bool r) {
      kernels.linear_gelu_backward_input(*stream_, dy, w, pre, dpre.of(r));
      kernels.linear_backward_input(*stream_, dy, w, product.of(r), Write::overwrite);
      if (!r) kernels.activation_backward(*stream_, Activation::gelu, pre, product.of(r), apart);
    });
    const std::string what = fmt::format("{}x{}x{}", m, k, n);
    const double error = 1.2 * sum_error(n) + 64 * 0x1p-24 * static_cast<double>(n) + rounding_of(product.reference);
    EXPECT_TRUE(dpre.near(error)) << what;
    EXPECT_TRUE(near(dpre.tested, apart, error)) << what;
    EXPECT_TRUE(device::is_gpu() || dpre.tested.same_bits(apart)) << what;
  }
}

/// cuBLASLt wants the GELU's input at multiples of 16 bytes: elsewhere it is made by two kernels.
TEST_P(Fused, GelusInputsMayLieAnywhere) {
  constexpr std::int64_t kM = 9, kN = 16, kK = 24;
  HostTensor x = random({kM, kK}, 1), w = random({kN, kK}, 2), dy = random({kM, kK}, 4), down = random({kK, kN}, 5);
  HostTensor pre = fresh({kM, kN}), y = fresh({kM, kN}), dpre = fresh({kM, kN});
  tested_->linear_gelu(*stream_, x, w, {}, pre, y);
  tested_->linear_gelu_backward_input(*stream_, dy, down, pre, dpre);
  for (const std::int64_t shift : {0, 1, 3}) {
    HostTensor space = fresh({kM * kN + 8}), y2 = fresh({kM, kN}), dpre2 = fresh({kM, kN});
    const TensorView moved = space.view().slice(shift, kM * kN).reshaped(Shape{kM, kN});
    tested_->linear_gelu(*stream_, x, w, {}, moved, y2);
    tested_->linear_gelu_backward_input(*stream_, dy, down, moved, dpre2);
    stream_->synchronize();
    for (std::int64_t i = 0; i < kM * kN; ++i) ASSERT_EQ(space.at(shift + i), pre.at(i)) << shift;
    for (std::int64_t i = 0; i < shift; ++i) EXPECT_TRUE(std::isnan(space.at(i))) << "written in front";
    for (std::int64_t i = shift + kM * kN; i < space.numel(); ++i) EXPECT_TRUE(std::isnan(space.at(i)));
    EXPECT_TRUE(near(y2, y, 64 * 0x1p-24 + rounding_of(pre))) << shift;
    EXPECT_TRUE(near(dpre2, dpre, 64 * 0x1p-24 + rounding_of(dpre))) << shift;
  }
}

TEST_P(Fused, NoRowsAndWhatDoesNotFit) {
  HostTensor x = random({0, 5}, 1), w = random({8, 5}, 2), none = fresh({0, 8}), dx = fresh({0, 5});
  tested_->linear_gelu(*stream_, x, w, {}, none, none);
  tested_->linear_gelu_backward_input(*stream_, none, w, dx, dx);
  HostTensor three = random({3, 5}, 1), y = fresh({3, 8}), short_pre = fresh({2, 8});
  EXPECT_THROW(tested_->linear_gelu(*stream_, three, w, {}, short_pre, y), Error);
  EXPECT_THROW(tested_->linear_gelu_backward_input(*stream_, y, w, short_pre, three), Error);
  HostTensor gamma = random({8}, 3);
  EXPECT_THROW(tested_->add_rms_norm(*stream_, short_pre, y, y, gamma, 1e-5, y, {}), Error);
  std::vector<ProductShape> list;
  tested_->record_products(&list);
  tested_->linear_gelu(*stream_, three, w, {}, {}, y);
  tested_->linear_gelu_backward_input(*stream_, y, w, three, three);
  tested_->record_products(nullptr);
  stream_->synchronize();
  ASSERT_EQ(list.size(), 2U);
  EXPECT_TRUE(list[0].m == 3 && list[0].n == 8 && list[0].k == 5 && list[0].transposed_b);
  EXPECT_TRUE(list[1].m == 3 && list[1].n == 5 && list[1].k == 8 && !list[1].transposed_b);
}

struct FusedDims {
  std::int64_t rows, cols;
};
constexpr FusedDims kRows[] = {{0, 5}, {1, 1}, {3, 7}, {17, 33}, {65, 128}, {2, 1000}, {700, 65}, {9, 2056}, {3, 2051}};

/// Which of the two the sum is written over, if any.
enum class Over { neither, a, b };

TEST_P(Fused, SumsAndTheirNormsHaveTheBitsOfTwoCalls) {
  for (const auto [rows, cols] : kRows) {
    for (const Over over : {Over::neither, Over::a, Over::b}) {
      HostTensor gamma = random({cols}, 2), beta = random({cols}, 3), first = random({rows, cols}, 4, -2, 3),
                 second = random({rows, cols}, 5);
      HostTensor sum = fresh({rows, cols}), y = sum, bare = sum, mean({rows}, DType::f32), rstd = mean;
      tested_->add(*stream_, first, second, sum);
      tested_->layer_norm(*stream_, sum, gamma, beta, 1e-5, y, mean, rstd);
      const auto check = [&](const char* what, const auto& fused) {
        HostTensor a = first, b = second, own = fresh({rows, cols}), y2 = own, mean2({rows}, DType::f32), rstd2 = mean2;
        HostTensor& to = over == Over::a ? a : over == Over::b ? b : own;
        fused(a, b, to, y2, mean2, rstd2);
        stream_->synchronize();
        const std::string where = fmt::format("{} {}x{} over {}", what, rows, cols, static_cast<int>(over));
        EXPECT_TRUE(to.same_bits(sum)) << where;
        EXPECT_TRUE(y2.same_bits(y)) << where;
        return std::pair(mean2, rstd2);
      };
      const auto [mean2, rstd2] = check("layer norm", [&](auto& a, auto& b, auto& to, auto& y2, auto& m, auto& r) {
        tested_->add_layer_norm(*stream_, a, b, to, gamma, beta, 1e-5, y2, m, r);
      });
      EXPECT_TRUE(mean2.same_bits(mean));
      EXPECT_TRUE(rstd2.same_bits(rstd));
      check("layer norm alone", [&](auto& a, auto& b, auto& to, auto& y2, auto&, auto&) {
        tested_->add_layer_norm(*stream_, a, b, to, gamma, beta, 1e-5, y2, {}, {});
      });
      tested_->rms_norm(*stream_, sum, gamma, 1e-5, y, rstd);
      const auto [unused, root] = check("rms norm", [&](auto& a, auto& b, auto& to, auto& y2, auto&, auto& r) {
        tested_->add_rms_norm(*stream_, a, b, to, gamma, 1e-5, y2, r);
      });
      EXPECT_TRUE(root.same_bits(rstd));
    }
  }
}

TEST_P(Fused, SumsAndTheirNormsAreTheOracles) {
  for (const auto [rows, cols] : kRows) {
    if (cols < 3) continue;
    HostTensor a = random({rows, cols}, 1, -2, 3), b = random({rows, cols}, 2), gamma = random({cols}, 3), beta = random({cols}, 4);
    Pair sum({rows, cols}, dtype()), y({rows, cols}, dtype()), root({rows, cols}, dtype());
    both([&](Kernels& kernels, bool r) {
      kernels.add_layer_norm(*stream_, a, b, sum.of(r), gamma, beta, 1e-5, y.of(r), {}, {});
      kernels.add_rms_norm(*stream_, a, b, sum.of(r), gamma, 1e-5, root.of(r), {});
    });
    EXPECT_TRUE(sum.tested.same_bits(sum.reference)) << "one addition, rounded once";
    const double error = static_cast<double>(cols + 8) * 0x1p-24 * 64;
    EXPECT_TRUE(y.near(error)) << rows << "x" << cols;
    EXPECT_TRUE(root.near(error)) << rows << "x" << cols;
  }
}

/// What an optimizer's step takes of one tensor.
struct Stepped {
  HostTensor param, grad, m, v;
  explicit Stepped(std::int64_t n, unsigned seed)
      : param(make(n, seed, -1)), grad(make(n, seed + 1, -1)), m(make(n, seed + 2, -1)), v(make(n, seed + 3, 0)) {}
  static HostTensor make(std::int64_t n, unsigned seed, double low) { return HostTensor::random({n + 3}, DType::f32, seed, low, 1); }
  /// Pieces of flat parameters begin anywhere.
  static TensorView part(HostTensor& t, std::size_t i) { return t.view().slice(static_cast<std::int64_t>(i % 4 == 1), t.numel() - 3); }
};

/// More than fit into one launch; one of them larger than a launch for it alone takes at once, some empty.
std::vector<Stepped> many_tensors() {
  std::vector<Stepped> tensors;
  for (std::int64_t i = 0; i < 120; ++i) {
    const std::int64_t n = i == 50 ? 70001 : i % 7 == 3 ? 0 : i * 37 % 1025;
    tensors.emplace_back(n, static_cast<unsigned>(i) * 4);
  }
  return tensors;
}

TEST_P(Fused, ManyTensorsAreSteppedAsOneByOne) {
  if (dtype() != DType::f32) return;  // the masters' only one
  HostTensor scale = HostTensor::of(DType::f32, {0.37}), skipped = HostTensor::of(DType::f32, {2});
  for (const double skip_value : {0.0, 1.0}) {
    HostTensor skip = HostTensor::of(DType::f32, {skip_value});
    std::vector<Stepped> together = many_tensors(), apart = many_tensors();
    for (std::vector<Stepped>* tensors : {&together, &apart}) {
      std::vector<AdamWArgs> adamw;
      std::vector<SgdArgs> sgd;
      for (std::size_t i = 0; i < tensors->size(); ++i) {
        Stepped& t = (*tensors)[i];
        const auto k = static_cast<double>(i);
        AdamWArgs a;
        a.param = Stepped::part(t.param, i), a.grad = Stepped::part(t.grad, i + 1);
        a.exp_avg = Stepped::part(t.m, i), a.exp_avg_sq = Stepped::part(t.v, i);
        a.lr = 1e-3 * (k + 1), a.beta1 = 0.9 - k * 1e-3, a.beta2 = 0.95, a.weight_decay = i % 2 == 0 ? 0.1 : 0;
        a.step = static_cast<std::int64_t>(i) + 3;
        a.grad_scale = scale, a.skip = skip, a.skipped_steps = skipped;
        adamw.push_back(a);
        SgdArgs g;
        g.param = a.param, g.grad = a.grad;
        if (i % 3 != 0) g.momentum_buffer = a.exp_avg, g.momentum = 0.9;
        g.lr = 1e-2 * (k + 1), g.weight_decay = a.weight_decay, g.nesterov = i % 3 == 2, g.first_step = i % 5 == 0;
        g.grad_scale = scale, g.skip = skip;
        sgd.push_back(g);
      }
      if (tensors == &together) {
        tested_->adamw(*stream_, adamw);
        tested_->sgd(*stream_, sgd);
      } else {
        for (const AdamWArgs& args : adamw) tested_->adamw(*stream_, args);
        for (const SgdArgs& args : sgd) tested_->sgd(*stream_, args);
      }
    }
    stream_->synchronize();
    const std::vector<Stepped> before = many_tensors();
    for (std::size_t i = 0; i < together.size(); ++i) {
      EXPECT_TRUE(together[i].param.same_bits(apart[i].param)) << i;
      EXPECT_TRUE(together[i].m.same_bits(apart[i].m)) << i;
      EXPECT_TRUE(together[i].v.same_bits(apart[i].v)) << i;
      const bool changes = skip_value == 0 && before[i].param.numel() > 3;
      EXPECT_EQ(together[i].param.same_bits(before[i].param), !changes) << i;
    }
  }
  tested_->adamw(*stream_, std::span<const AdamWArgs>());
  tested_->sgd(*stream_, std::span<const SgdArgs>());
  AdamWArgs one, other;
  one.grad_scale = scale;
  EXPECT_THROW(tested_->adamw(*stream_, std::vector<AdamWArgs>{one, other}), Error) << "scales of their own";
}

INSTANTIATE_TEST_SUITE_P(Lanes, Fused, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
