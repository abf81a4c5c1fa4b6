// SPDX-License-Identifier: Apache-2.0
#include "kernels_testing.hpp"

namespace mica::testing {
namespace {

class Layers : public KernelsTest {};

/// 50000 elements are shared out among threads; the others take the direct path.
constexpr std::int64_t kLayerNumels[] = {0, 1, 3, 7, 17, 33, 65, 129, 50000};
struct LayerDims {
  std::int64_t rows, cols;
};
constexpr LayerDims kLayerDims[] = {{0, 5},    {1, 1},    {3, 7},    {17, 33},  {65, 129}, {2, 1000}, {700, 65},
                                    {9001, 3}, {9, 2056}, {3, 2051}, {5, 4104}, {2, 4099}, {3, 8200}, {2, 8193}};

TEST_P(Layers, ActivationsAreTheOracles) {
  for (const Activation f : {Activation::gelu, Activation::relu, Activation::silu, Activation::tanh}) {
    for (const std::int64_t n : kLayerNumels) {
      HostTensor x = random({n}, 1, -6, 6), dy = random({n}, 2);
      Pair y({n}, dtype()), dx({n}, dtype()), in_place(dy);
      both([&](Kernels& kernels, bool r) {
        kernels.activation(*stream_, f, x, y.of(r));
        kernels.activation_backward(*stream_, f, x, dy, dx.of(r));
        kernels.activation_backward(*stream_, f, x, in_place.of(r), in_place.of(r));
      });
      const std::string what = fmt::format("activation {} of {}", static_cast<int>(f), n);
      // A few operations in f32 on values up to 6.
      EXPECT_TRUE(y.near(6 * 8 * 0x1p-24)) << what;
      EXPECT_TRUE(dx.near(6 * 8 * 0x1p-24)) << what;
      EXPECT_TRUE(in_place.tested.same_bits(dx.tested)) << what;
    }
  }
}

TEST_P(Layers, LayerNormIsTheOracles) {
  for (const auto [rows, cols] : kLayerDims) {
    HostTensor x = random({rows, cols}, 1, -2, 3), gamma = random({cols}, 2), beta = random({cols}, 3);
    Pair y({rows, cols}, dtype()), y_alone({rows, cols}, dtype()), mean({rows}, DType::f32), rstd({rows}, DType::f32);
    both([&](Kernels& kernels, bool r) {
      kernels.layer_norm(*stream_, x, gamma, beta, 1e-5, y.of(r), mean.of(r), rstd.of(r));
      kernels.layer_norm(*stream_, x, gamma, beta, 1e-5, y_alone.of(r), {}, {});
    });
    // rstd is at most 1/sqrt(eps) = 317, and so may be what it multiplies the mean's error with.
    const double mean_error = static_cast<double>(cols + 2) * 0x1p-24 * 3;
    EXPECT_TRUE(mean.near(mean_error)) << rows << "x" << cols;
    EXPECT_TRUE(rstd.near(317 * 8 * mean_error)) << rows << "x" << cols;
    EXPECT_TRUE(y.near(cols == 1 ? 317 * mean_error : 16 * mean_error + 16 * 0x1p-24)) << rows << "x" << cols;
    EXPECT_TRUE(y_alone.tested.same_bits(y.tested)) << rows << "x" << cols;
  }
}

TEST_P(Layers, LayerNormBackwardIsTheOracles) {
  for (const auto [rows, cols] : kLayerDims) {
    if (cols < 3) continue;  // one column: the gradient is noise of size eps times 1/sqrt(eps)
    HostTensor x = random({rows, cols}, 1, -2, 3), gamma = random({cols}, 2), dy = random({rows, cols}, 4);
    HostTensor beta = random({cols}, 3), y = fresh({rows, cols}), mean({rows}, DType::f32), rstd({rows}, DType::f32);
    oracle([&](Kernels& kernels) { kernels.layer_norm(*stream_, x, gamma, beta, 1e-5, y, mean, rstd); });
    for (const DType gradient : {DType::f32, DType::bf16, DType::f16}) {
      Pair dx({rows, cols}, dtype()), added(random({rows, cols}, 5)), in_place(dy);
      Pair dgamma({cols}, gradient), dbeta({cols}, gradient), dgamma_added(HostTensor::random({cols}, gradient, 6));
      both([&](Kernels& kernels, bool r) {
        kernels.layer_norm_backward(*stream_, dy, x, gamma, mean, rstd, dx.of(r), Write::overwrite, dgamma.of(r), dbeta.of(r),
                                    Write::overwrite);
        kernels.layer_norm_backward(*stream_, dy, x, gamma, mean, rstd, added.of(r), Write::accumulate, dgamma_added.of(r), {},
                                    Write::accumulate);
        kernels.layer_norm_backward(*stream_, in_place.of(r), x, gamma, mean, rstd, in_place.of(r), Write::overwrite, {}, {},
                                    Write::overwrite);
      });
      // Per element: a sum over the row of terms up to 4 (normalised x), times rstd (here below 4).
      const double error = 4 * sum_error(cols + 4, 4.0 / static_cast<double>(cols)) + 64 * 0x1p-24;
      EXPECT_TRUE(dx.near(error)) << rows << "x" << cols;
      EXPECT_TRUE(added.near(error)) << rows << "x" << cols;
      EXPECT_TRUE(in_place.tested.same_bits(dx.tested)) << rows << "x" << cols;
      EXPECT_TRUE(dgamma.near(sum_error(rows + 4, 4))) << rows << "x" << cols;
      EXPECT_TRUE(dbeta.near(sum_error(rows))) << rows << "x" << cols;
      EXPECT_TRUE(dgamma_added.near(sum_error(rows + 4, 4))) << rows << "x" << cols;
    }
  }
}

struct TokenDims {
  std::int64_t batch, seq_len, vocab, width, context;
};
constexpr TokenDims kTokenDims[] = {{1, 1, 1, 1, 1}, {3, 7, 5, 3, 9}, {2, 33, 65, 17, 33}, {4, 65, 7, 129, 100}, {8, 64, 50, 65, 64}};

TEST_P(Layers, EmbeddingIsTheOracles) {
  for (const TokenDims& d : kTokenDims) {
    HostTensor ids = HostTensor::random_ids({d.batch, d.seq_len}, d.vocab, 1);
    HostTensor tokens = random({d.vocab, d.width}, 2), positions = random({d.context, d.width}, 3);
    Pair y({d.batch, d.seq_len, d.width}, dtype()), bare({d.batch, d.seq_len, d.width}, dtype());
    both([&](Kernels& kernels, bool r) {
      kernels.embedding(*stream_, ids, tokens, positions, y.of(r));
      kernels.embedding(*stream_, ids, tokens, {}, bare.of(r));
    });
    EXPECT_TRUE(y.tested.same_bits(y.reference)) << "one addition, rounded once";
    EXPECT_TRUE(bare.tested.same_bits(bare.reference));
  }
}

TEST_P(Layers, EmbeddingBackwardIsTheOracles) {
  for (const TokenDims& d : kTokenDims) {
    for (const DType gradient : {DType::f32, DType::bf16, DType::f16}) {
      HostTensor ids = HostTensor::random_ids({d.batch, d.seq_len}, d.vocab, 1);
      HostTensor dy = random({d.batch, d.seq_len, d.width}, 2);
      Pair tokens({d.vocab, d.width}, gradient), positions({d.context, d.width}, gradient);
      Pair tokens_added(HostTensor::random({d.vocab, d.width}, gradient, 3));
      Pair positions_added(HostTensor::random({d.context, d.width}, gradient, 4));
      both([&](Kernels& kernels, bool r) {
        kernels.embedding_backward(*stream_, dy, ids, tokens.of(r), Write::overwrite, positions.of(r), Write::overwrite);
        kernels.embedding_backward(*stream_, dy, ids, tokens_added.of(r), Write::accumulate, {}, Write::overwrite);
        kernels.embedding_backward(*stream_, dy, ids, {}, Write::overwrite, positions_added.of(r), Write::accumulate);
      });
      EXPECT_TRUE(tokens.near(sum_error(d.batch * d.seq_len))) << "vocab " << d.vocab;
      EXPECT_TRUE(positions.near(sum_error(d.batch))) << "context " << d.context;
      EXPECT_TRUE(tokens_added.near(sum_error(d.batch * d.seq_len + 1))) << "vocab " << d.vocab;
      EXPECT_TRUE(positions_added.near(sum_error(d.batch + 1))) << "context " << d.context;
    }
  }
}

/// The sums are taken in the order of the tokens, whoever takes them.
TEST_P(Layers, EmbeddingBackwardHasTheSameBitsOnAnyNumberOfThreads) {
  HostTensor ids = HostTensor::random_ids({8, 200}, 11, 1), dy = random({8, 200, 300}, 2);
  HostTensor one({11, 300}, DType::f32), many = one, positions_one({200, 300}, DType::f32), positions_many = positions_one;
  omp_set_num_threads(1);
  tested_->embedding_backward(*stream_, dy, ids, one, Write::overwrite, positions_one, Write::overwrite);
  omp_set_num_threads(kManyThreads);
  tested_->embedding_backward(*stream_, dy, ids, many, Write::overwrite, positions_many, Write::overwrite);
  stream_->synchronize();
  EXPECT_TRUE(one.same_bits(many));
  EXPECT_TRUE(positions_one.same_bits(positions_many));
}

TEST_P(Layers, DropoutIsTheOraclesAndItsOwnBackward) {
  const RandomKey key{.seed = 7, .step = 3, .name_hash = hash_name("drop")};
  const std::vector<std::int64_t> sequences{5, 2, 1000000007};
  for (const std::int64_t n : {1, 7, 33, 20000}) {
    for (const double p : {0.0, 0.1, 0.9}) {
      HostTensor x = random({3, n}, 1);
      Pair y({3, n}, dtype()), in_place(x);
      both([&](Kernels& kernels, bool r) {
        std::vector<std::int64_t> copied = sequences;
        kernels.dropout(*stream_, x, p, key, copied, y.of(r));
        copied.assign(3, 0);  // the ids were taken at the call
        kernels.dropout(*stream_, in_place.of(r), p, key, sequences, in_place.of(r));
      });
      EXPECT_TRUE(y.near(0x1p-20)) << n << " elements, p = " << p;
      EXPECT_TRUE(in_place.tested.same_bits(y.tested));
      for (std::int64_t i = 0; i < 3 * n; ++i) ASSERT_EQ(y.tested.at(i) == 0, y.reference.at(i) == 0) << i;
    }
  }
  std::vector<std::int64_t> many;
  for (std::int64_t i = 0; i < 131; ++i) many.push_back(i * 7);
  for (const std::int64_t n : {5, 24}) {
    HostTensor rows = random({131, n}, 2);
    Pair out({131, n}, dtype());
    both([&](Kernels& kernels, bool r) { kernels.dropout(*stream_, rows, 0.5, key, many, out.of(r)); });
    EXPECT_TRUE(out.near(0x1p-20)) << n << " elements in each of 131 rows";
  }
  HostTensor x = random({3, 5}, 1), y = fresh({3, 5});
  EXPECT_THROW(tested_->dropout(*stream_, x, 1.0, key, sequences, y), Error);
  EXPECT_THROW(tested_->dropout(*stream_, x, 0.1, key, std::span(sequences).first(2), y), Error);
}

INSTANTIATE_TEST_SUITE_P(Lanes, Layers, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
