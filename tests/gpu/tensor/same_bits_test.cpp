// SPDX-License-Identifier: Apache-2.0
#include "unit/tensor/kernels_testing.hpp"

// Where no exponential, sine or sum of floats is in the way, a GPU gives the CPU's bits: what runs on the one goes on
// on the other.
namespace mica::testing {
namespace {

class SameBits : public KernelsTest {
 protected:
  /// Runs calls with the GPU's kernels and with the CPU's; `results` holds, for each, what must come out alike.
  void on_both(const std::function<void(Kernels&, Stream&, std::vector<HostTensor>& results)>& calls,
               const std::vector<HostTensor>& start) {
    std::vector<HostTensor> gpu = start, cpu = start;
    calls(*tested_, *tested_stream_, gpu);
    tested_stream_->synchronize();
    calls(*cpu_kernels_, *reference_stream_, cpu);
    for (std::size_t i = 0; i < start.size(); ++i) EXPECT_TRUE(gpu[i].same_bits(cpu[i])) << "result " << i;
  }

  std::unique_ptr<Pool> cpu_pool_ = make_cpu_pool();
  std::unique_ptr<Kernels> cpu_kernels_ = make_cpu_kernels(*cpu_pool_);
};

constexpr std::int64_t kNumel = 10007;

TEST_P(SameBits, OfSumsScalesAndCasts) {
  HostTensor a = random({kNumel}, 1, -3, 3), b = random({kNumel}, 2), factor = HostTensor::of(DType::f32, {0.3});
  std::vector<HostTensor> start{fresh({kNumel}), a};
  for (const DType to : {DType::f32, DType::bf16, DType::f16}) {
    start.push_back(HostTensor::random({kNumel}, to, 3));
    start.emplace_back(Shape{kNumel}, to);
  }
  on_both(
      [&](Kernels& kernels, Stream& s, std::vector<HostTensor>& results) {
        kernels.add(s, a, b, results[0]);
        kernels.scale_by(s, results[1], factor);
        for (std::size_t i = 2; i < results.size(); i += 2) {
          kernels.scale(s, a, 0.7, results[i], Write::accumulate);
          kernels.copy(s, a, results[i + 1]);
        }
      },
      start);
}

TEST_P(SameBits, OfRandomNumbers) {
  const RandomKey key{.seed = 5, .step = 2, .name_hash = hash_name("h.0")};
  const std::vector<std::int64_t> sequences{4, 9};
  HostTensor x = random({2, kNumel}, 1);
  on_both(
      [&](Kernels& kernels, Stream& s, std::vector<HostTensor>& results) {
        kernels.fill_normal(s, results[0], key, 12345, 0.02);
        kernels.dropout(s, x, 0.1, key, sequences, results[1]);
      },
      {fresh({kNumel}), fresh({2, kNumel})});
}

TEST_P(SameBits, OfOptimizers) {
  const auto f32 = [](unsigned seed, double low = -1) { return HostTensor::random({kNumel}, DType::f32, seed, low, 1); };
  HostTensor grad = f32(1), scale = HostTensor::of(DType::f32, {0.37}), skipped = HostTensor::of(DType::f32, {2});
  on_both(
      [&](Kernels& kernels, Stream& s, std::vector<HostTensor>& r) {
        for (const std::int64_t step : {5, 6}) {
          kernels.adamw(s, {.param = r[0],
                            .grad = grad,
                            .exp_avg = r[1],
                            .exp_avg_sq = r[2],
                            .lr = 3e-4,
                            .beta2 = 0.95,
                            .weight_decay = 0.1,
                            .step = step,
                            .grad_scale = scale,
                            .skip = {},
                            .skipped_steps = skipped});
          kernels.sgd(s, {.param = r[3],
                          .grad = grad,
                          .momentum_buffer = r[4],
                          .lr = 0.1,
                          .momentum = 0.9,
                          .weight_decay = 0.01,
                          .nesterov = true,
                          .first_step = step == 5,
                          .grad_scale = scale,
                          .skip = {}});
        }
        kernels.unscale(s, r[5], scale, r[6]);
      },
      {f32(2), f32(3), f32(4, 0), f32(5), f32(6), random({kNumel}, 7), HostTensor::of(DType::f32, {0})});
}

INSTANTIATE_TEST_SUITE_P(Lanes, SameBits, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
