// SPDX-License-Identifier: Apache-2.0
#include "kernels_testing.hpp"

// What Llama needs beside attention: root mean square norm, SwiGLU, rotary embedding.
namespace mica::testing {
namespace {

class LlamaLayers : public KernelsTest {};

constexpr std::int64_t kLlamaNumels[] = {0, 1, 3, 7, 17, 33, 65, 129, 50000};
struct LlamaDims {
  std::int64_t rows, cols;
};
constexpr LlamaDims kLlamaDims[] = {{0, 5},    {1, 1},    {3, 7},    {17, 33},  {65, 129}, {2, 1000}, {700, 65},
                                    {9001, 3}, {9, 2056}, {3, 2051}, {5, 4104}, {2, 4099}, {3, 8200}, {2, 8193}};

TEST_P(LlamaLayers, SwigluIsTheOracles) {
  for (const std::int64_t n : kLlamaNumels) {
    HostTensor gate = random({n}, 1, -6, 6), up = random({n}, 2), dy = random({n}, 3);
    Pair y({n}, dtype()), dgate({n}, dtype()), dup({n}, dtype()), over_gate(gate), over_dy(dy);
    both([&](Kernels& kernels, bool r) {
      kernels.swiglu(*stream_, gate, up, y.of(r));
      kernels.swiglu_backward(*stream_, gate, up, dy, dgate.of(r), dup.of(r));
      kernels.swiglu_backward(*stream_, over_gate.of(r), up, over_dy.of(r), over_gate.of(r), over_dy.of(r));
    });
    // A few operations in f32 on values up to 6.
    EXPECT_TRUE(y.near(6 * 8 * 0x1p-24)) << n;
    EXPECT_TRUE(dgate.near(6 * 8 * 0x1p-24)) << n;
    EXPECT_TRUE(dup.near(6 * 8 * 0x1p-24)) << n;
    EXPECT_TRUE(over_gate.tested.same_bits(dgate.tested)) << n;
    EXPECT_TRUE(over_dy.tested.same_bits(dup.tested)) << n;
  }
  HostTensor x = random({3}, 1), same = fresh({3});
  EXPECT_THROW(tested_->swiglu_backward(*stream_, x, x, x, same, same), Error);
}

TEST_P(LlamaLayers, RmsNormIsTheOracles) {
  for (const auto [rows, cols] : kLlamaDims) {
    HostTensor x = random({rows, cols}, 1, -2, 3), gamma = random({cols}, 2);
    Pair y({rows, cols}, dtype()), y_alone({rows, cols}, dtype()), rstd({rows}, DType::f32);
    both([&](Kernels& kernels, bool r) {
      kernels.rms_norm(*stream_, x, gamma, 1e-5, y.of(r), rstd.of(r));
      kernels.rms_norm(*stream_, x, gamma, 1e-5, y_alone.of(r), {});
    });
    // All terms of the sum are positive: a relative error of (cols + a few) / 2 roundings, of results up to 3.
    const double relative = static_cast<double>(cols + 8) * 0x1p-24;
    for (std::int64_t i = 0; i < rows; ++i) {
      EXPECT_NEAR(rstd.tested.at(i), rstd.reference.at(i), relative * rstd.reference.at(i)) << rows << "x" << cols;
    }
    EXPECT_TRUE(y.near(std::sqrt(static_cast<double>(cols)) * relative)) << rows << "x" << cols;
    EXPECT_TRUE(y_alone.tested.same_bits(y.tested)) << rows << "x" << cols;
  }
}

TEST_P(LlamaLayers, RmsNormBackwardIsTheOracles) {
  for (const auto [rows, cols] : kLlamaDims) {
    if (cols < 3) continue;  // one column: the gradient is noise of size eps times rstd
    HostTensor x = random({rows, cols}, 1, -2, 3), gamma = random({cols}, 2), dy = random({rows, cols}, 4);
    HostTensor y = fresh({rows, cols}), rstd({rows}, DType::f32);
    oracle([&](Kernels& kernels) { kernels.rms_norm(*stream_, x, gamma, 1e-5, y, rstd); });
    for (const DType gradient : {DType::f32, DType::bf16, DType::f16}) {
      Pair dx({rows, cols}, dtype()), added(random({rows, cols}, 5)), in_place(dy);
      Pair dgamma({cols}, gradient), dgamma_added(HostTensor::random({cols}, gradient, 6));
      Pair dgamma_alone({cols}, gradient);
      both([&](Kernels& kernels, bool r) {
        kernels.rms_norm_backward(*stream_, dy, x, gamma, rstd, dx.of(r), Write::overwrite, dgamma.of(r), Write::overwrite);
        kernels.rms_norm_backward(*stream_, dy, x, gamma, rstd, added.of(r), Write::accumulate, dgamma_added.of(r), Write::accumulate);
        kernels.rms_norm_backward(*stream_, in_place.of(r), x, gamma, rstd, in_place.of(r), Write::overwrite, {}, Write::overwrite);
        kernels.rms_norm_backward(*stream_, dy, x, gamma, rstd, {}, Write::overwrite, dgamma_alone.of(r), Write::overwrite);
      });
      // Per element: a sum over the row of terms up to 4 (normalised x), times rstd (here below 4).
      const double error = 4 * sum_error(cols + 4, 4.0 / static_cast<double>(cols)) + 64 * 0x1p-24;
      EXPECT_TRUE(dx.near(error)) << rows << "x" << cols;
      EXPECT_TRUE(added.near(error)) << rows << "x" << cols;
      EXPECT_TRUE(in_place.tested.same_bits(dx.tested)) << rows << "x" << cols;
      EXPECT_TRUE(dgamma.near(sum_error(rows + 4, 4))) << rows << "x" << cols;
      EXPECT_TRUE(dgamma_added.near(sum_error(rows + 4, 4))) << rows << "x" << cols;
      EXPECT_TRUE(dgamma_alone.tested.same_bits(dgamma.tested)) << rows << "x" << cols;
    }
  }
}

struct RotaryDims {
  std::int64_t batch, seq_len, heads, half;
};
// Lengths around a block of 64 positions.
constexpr RotaryDims kRotaryDims[] = {{1, 1, 1, 1},    {2, 3, 1, 3}, {3, 63, 2, 5},   {1, 64, 3, 8}, {2, 65, 2, 16},
                                      {1, 200, 4, 17}, {0, 7, 2, 4}, {4, 130, 9, 32}, {1, 3, 2, 136}};

std::vector<double> frequencies(std::int64_t half) {
  std::vector<double> inv_freq;
  for (std::int64_t i = 0; i < half; ++i) {
    inv_freq.push_back(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half)));
  }
  return inv_freq;
}

TEST_P(LlamaLayers, RotaryIsTheOracles) {
  for (const auto& [batch, seq_len, heads, half] : kRotaryDims) {
    const Shape shape{batch, seq_len, heads * 2 * half};
    HostTensor x = random(shape, 1);
    Pair y(shape, dtype()), back(shape, dtype()), in_place(x);
    both([&](Kernels& kernels, bool r) {
      std::vector<double> inv_freq = frequencies(half);
      kernels.rotary(*stream_, x, inv_freq, Turn::forward, y.of(r));
      kernels.rotary(*stream_, x, inv_freq, Turn::back, back.of(r));
      kernels.rotary(*stream_, in_place.of(r), inv_freq, Turn::forward, in_place.of(r));
      inv_freq.assign(inv_freq.size(), 7);  // they were taken at the call
    });
    // Cosine, sine, two products and a sum, each rounded, of values up to 1.
    EXPECT_TRUE(y.near(6 * 0x1p-24)) << shape.to_string();
    EXPECT_TRUE(back.near(6 * 0x1p-24)) << shape.to_string();
    EXPECT_TRUE(in_place.tested.same_bits(y.tested)) << shape.to_string();
  }
}

/// Angles are exact far out: position 131071 of Llama 3.1 turns by 131071 radians.
TEST_P(LlamaLayers, RotaryIsRightAtLongLengths) {
  constexpr std::int64_t kLength = 131072;
  HostTensor x = random({1, kLength, 2}, 1);
  Pair y({1, kLength, 2}, dtype());
  const std::vector<double> inv_freq{1.0};
  both([&](Kernels& kernels, bool r) { kernels.rotary(*stream_, x, inv_freq, Turn::forward, y.of(r)); });
  EXPECT_TRUE(y.near(6 * 0x1p-24));
}

TEST_P(LlamaLayers, RotaryRefusesHeadsThatDoNotFit) {
  HostTensor x = random({1, 3, 6}, 1), flat = random({18}, 1), y = fresh({1, 3, 6});
  EXPECT_THROW(tested_->rotary(*stream_, x, frequencies(2), Turn::forward, y), Error);
  EXPECT_THROW(tested_->rotary(*stream_, flat, frequencies(3), Turn::forward, y), Error);
  EXPECT_THROW(tested_->rotary(*stream_, x, {}, Turn::forward, y), Error);
}

INSTANTIATE_TEST_SUITE_P(Lanes, LlamaLayers, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
