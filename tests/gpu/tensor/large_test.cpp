// SPDX-License-Identifier: Apache-2.0
#include "unit/tensor/kernels_testing.hpp"

// Arrays for which a kernel's grid is too small: its threads take several turns.
namespace mica::testing {
namespace {

class Large : public KernelsTest {};

/// 4096 blocks of 256 threads, 16 bytes each, and some more; nothing of it lies at a multiple of 16 bytes.
TEST_P(Large, ElementwiseRangesAreTheCpus) {
  const std::int64_t n = 4096 * 256 * 16 / dtype_bytes(dtype()) + 5003;
  const RandomKey key{.seed = 3, .name_hash = hash_name("w")};
  const std::unique_ptr<Pool> cpu_pool = make_cpu_pool();
  const std::unique_ptr<Kernels> cpu = make_cpu_kernels(*cpu_pool);
  HostTensor gpu_sum = fresh({n + 1}), cpu_sum = fresh({n + 1}), factor = HostTensor::of(DType::f32, {0.77});
  const auto run = [&](Kernels& kernels, Stream& s, HostTensor& into) {
    HostTensor noise = fresh({n + 1});
    const TensorView sum = into.view().slice(1, n), other = noise.view().slice(1, n);
    kernels.fill(s, into, 0.5);
    kernels.fill_normal(s, other, key, 3, 1.0);
    kernels.add(s, sum, other, sum);
    kernels.scale(s, other, 0.3, sum, Write::accumulate);
    kernels.scale_by(s, sum, factor);
    s.synchronize();
  };
  run(*tested_, *tested_stream_, gpu_sum);
  run(*cpu, *reference_stream_, cpu_sum);
  EXPECT_TRUE(gpu_sum.same_bits(cpu_sum));
}

/// 8192 blocks of 8 rows.
TEST_P(Large, RowsAreTheOracles) {
  constexpr std::int64_t kRows = 8 * 8192 + 9, kCols = 3, kVocab = 300;
  HostTensor x = random({kRows, kCols}, 1, -2, 3), gamma = random({kCols}, 2), beta = random({kCols}, 3), dy = random({kRows, kCols}, 4);
  HostTensor ids = HostTensor::random_ids({1, kRows}, kVocab, 5), tokens = random({kVocab, kCols}, 6);
  Pair y({kRows, kCols}, dtype()), mean({kRows}, DType::f32), rstd({kRows}, DType::f32), dx({kRows, kCols}, dtype());
  Pair dgamma({kCols}, DType::f32), dbeta({kCols}, DType::f32);
  Pair embedded({1, kRows, kCols}, dtype()), dtokens({kVocab, kCols}, DType::f32);
  both([&](Kernels& kernels, bool r) {
    kernels.layer_norm(*stream_, x, gamma, beta, 0.1, y.of(r), mean.of(r), rstd.of(r));
    kernels.layer_norm_backward(*stream_, dy, x, gamma, mean.of(r), rstd.of(r), dx.of(r), Write::overwrite, dgamma.of(r), dbeta.of(r),
                                Write::overwrite);
    kernels.embedding(*stream_, ids, tokens, {}, embedded.of(r));
    kernels.embedding_backward(*stream_, dy.view().reshaped({1, kRows, kCols}), ids, dtokens.of(r), Write::overwrite, {}, Write::overwrite);
  });
  // With eps 0.1, rstd is at most 3.2: a few roundings of numbers up to 16.
  EXPECT_TRUE(y.near(64 * 0x1p-24));
  EXPECT_TRUE(mean.near(8 * 0x1p-24));
  EXPECT_TRUE(rstd.near(64 * 0x1p-24));
  EXPECT_TRUE(dx.near(256 * 0x1p-24));
  // Sums of random signs stay below 4 * sqrt(rows) = 1024 and are added 64, 8 and 128 at a time.
  EXPECT_TRUE(dgamma.near(200 * 0x1p-24 * 1024));
  EXPECT_TRUE(dbeta.near(200 * 0x1p-24 * 1024));
  EXPECT_TRUE(embedded.tested.same_bits(embedded.reference));
  EXPECT_TRUE(dtokens.near(sum_error(350)));
}

/// 1024 blocks of 147 rows, of which a thread takes 18 or 19, eight at a time; and the sums of as many blocks.
TEST_P(Large, BiasGradientsAreTheOracles) {
  constexpr std::int64_t kRows = 150'001;
  for (const std::int64_t cols : {3, 8}) {
    HostTensor dy = random({kRows, cols}, 1), x = random({kRows, 1}, 2);
    Pair dw({cols, 1}, DType::f32), dbias({cols}, DType::f32);
    both([&](Kernels& kernels, bool r) { kernels.linear_backward_params(*stream_, dy, x, dw.of(r), dbias.of(r), Write::overwrite); });
    EXPECT_TRUE(dbias.near(200 * 0x1p-24 * 1550)) << cols << ": sums of random signs stay below 4 * sqrt(rows)";
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, Large, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
