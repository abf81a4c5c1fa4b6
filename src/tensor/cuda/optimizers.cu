// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "../arguments.hpp"
#include "../optimizer_math.hpp"
#include "../scalar_math.hpp"
#include "cuda_kernels.hpp"
#include "vectors.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kCount = kLanes<float>;

__device__ float value_or(const float* value, float otherwise) { return value != nullptr ? *value : otherwise; }

/// Values shared by all tensors of a step: [1] each, or null.
struct Shared {
  const float *grad_scale, *skip, *skipped_steps;
};

/// [Note: many tensors in one launch] A launch steps a few dozen tensors, listed in its kernel parameters (of which every
/// driver takes 4096 bytes). Each tensor has its own range of blocks, as many as in a launch for it alone.
template <class Tensor>
struct Table {
  static constexpr int kMost = (4096 - 64) / static_cast<int>(sizeof(Tensor) + sizeof(int));
  int first_block[kMost];
  int count = 0;
  Tensor tensor[kMost];

  [[nodiscard]] __device__ int tensor_of(int block) const {
    int low = 0;
    for (int high = count; high - low > 1;) {
      const int middle = (low + high) / 2;
      (first_block[middle] <= block ? low : high) = middle;
    }
    return low;
  }
};

/// Vectors that a thread loads at a time: there is too little computation to hide the latency of memory.
constexpr int kPacks = 2;

/// Calls step(i, lanes, read(i, lanes)) for this block's elements of its tensor.
template <class Tensor, class Read, class Step>
__device__ void for_elements_of(const Table<Tensor>& table, int t, const Cut& cut, Read read, Step step) {
  constexpr Lanes<kCount> lanes;
  const int end = t + 1 < table.count ? table.first_block[t + 1] : static_cast<int>(gridDim.x);
  const std::int64_t threads = static_cast<std::int64_t>(end - table.first_block[t]) * blockDim.x;
  const std::int64_t thread = static_cast<std::int64_t>(static_cast<int>(blockIdx.x) - table.first_block[t]) * blockDim.x + threadIdx.x;
  for (std::int64_t first = thread; first < cut.vectors; first += kPacks * threads) {
    decltype(read(first, lanes)) values[kPacks]{};
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t v = first + k * threads;
      if (v < cut.vectors) values[k] = read(cut.head + v * kCount, lanes);
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t v = first + k * threads;
      if (v < cut.vectors) step(cut.head + v * kCount, lanes, values[k]);
    }
  }
  constexpr Lanes<1> alone;
  for (std::int64_t r = thread; r < cut.n - cut.vectors * kCount; r += threads) {
    const std::int64_t i = r < cut.head ? r : r + cut.vectors * kCount;
    step(i, alone, read(i, alone));
  }
}

/// The options that adamw_coefficients() reads.
struct AdamWOptions {
  double lr, beta1, beta2, eps, weight_decay;
  std::int64_t step;
};

/// @tparam Numbers  AdamWCoefficients from the host; or AdamWOptions, from which the device computes them, because only it knows how
/// many steps were skipped.
template <class Numbers>
struct AdamWTensor {
  float* param;
  const float* grad;
  float *exp_avg, *exp_avg_sq;
  Cut cut;
  Numbers numbers;
};

__device__ AdamWCoefficients coefficients_of(AdamWCoefficients made, const Shared& shared) {
  made.grad_scale = value_or(shared.grad_scale, 1.0F);
  return made;
}
/// On one thread of the block: two powers in double take about as long as the block's other work.
__device__ AdamWCoefficients coefficients_of(const AdamWOptions& options, const Shared& shared) {
  __shared__ AdamWCoefficients of_block;
  if (threadIdx.x == 0) of_block = adamw_coefficients(options, value_or(shared.grad_scale, 1.0F), *shared.skipped_steps);
  __syncthreads();
  return of_block;
}

template <int kLanesOfOne>
struct AdamWValues {
  Values<kLanesOfOne> g, p, m, v;
};

template <class Numbers>
__global__ void adamw_kernel(Table<AdamWTensor<Numbers>> table, Shared shared) {
  if (value_or(shared.skip, 0.0F) != 0.0F) return;
  const int index = table.tensor_of(static_cast<int>(blockIdx.x));
  const AdamWTensor<Numbers> a = table.tensor[index];
  const AdamWCoefficients c = coefficients_of(a.numbers, shared);
  for_elements_of(
      table, index, a.cut,
      [=](std::int64_t i, auto lanes) {
        return AdamWValues<decltype(lanes)::count>{load(a.grad + i, lanes), load(a.param + i, lanes), load(a.exp_avg + i, lanes),
                                                   load(a.exp_avg_sq + i, lanes)};
      },
      [=](std::int64_t i, auto lanes, auto x) {
#pragma unroll
        for (int l = 0; l < lanes.count; ++l) adamw_update<ScalarMath>(c, x.g.v[l], x.p.v[l], x.m.v[l], x.v.v[l]);
        store(a.param + i, x.p, lanes);
        store(a.exp_avg + i, x.m, lanes);
        store(a.exp_avg_sq + i, x.v, lanes);
      });
}

struct SgdTensor {
  float* param;
  const float* grad;
  float* buffer;  // null without momentum
  Cut cut;
  SgdCoefficients coefficients;
};

template <int kLanesOfOne>
struct SgdValues {
  Values<kLanesOfOne> g, p, b;
};

__global__ void sgd_kernel(Table<SgdTensor> table, Shared shared) {
  if (value_or(shared.skip, 0.0F) != 0.0F) return;
  const int index = table.tensor_of(static_cast<int>(blockIdx.x));
  const SgdTensor t = table.tensor[index];
  SgdCoefficients c = t.coefficients;
  c.grad_scale = value_or(shared.grad_scale, 1.0F);
  for_elements_of(
      table, index, t.cut,
      [=](std::int64_t i, auto lanes) {
        SgdValues<decltype(lanes)::count> x{load(t.grad + i, lanes), load(t.param + i, lanes), {}};
        if (t.buffer != nullptr) x.b = load(t.buffer + i, lanes);
        return x;
      },
      [=](std::int64_t i, auto lanes, auto x) {
        if (t.buffer != nullptr) {
#pragma unroll
          for (int l = 0; l < lanes.count; ++l) sgd_update(c, x.g.v[l], x.p.v[l], x.b.v[l]);
          store(t.buffer + i, x.b, lanes);
        } else {
#pragma unroll
          for (int l = 0; l < lanes.count; ++l) sgd_update(c, x.g.v[l], x.p.v[l]);
        }
        store(t.param + i, x.p, lanes);
      });
}

float* floats(const TensorView& view) { return static_cast<float*>(view.data); }
const float* floats(const ConstTensorView& view) { return static_cast<const float*>(view.data); }

AdamWCoefficients numbers_of(const AdamWArgs& a, AdamWCoefficients) { return adamw_coefficients(a, 1.0F); }
AdamWOptions numbers_of(const AdamWArgs& a, AdamWOptions) { return {a.lr, a.beta1, a.beta2, a.eps, a.weight_decay, a.step}; }

template <class Numbers>
void set(AdamWTensor<Numbers>& to, const AdamWArgs& a) {
  to = {.param = floats(a.param),
        .grad = floats(a.grad),
        .exp_avg = floats(a.exp_avg),
        .exp_avg_sq = floats(a.exp_avg_sq),
        .cut = cut<kCount>(a.param.numel(), floats(a.param), floats(a.grad), floats(a.exp_avg), floats(a.exp_avg_sq)),
        .numbers = numbers_of(a, Numbers())};
}

void set(SgdTensor& to, const SgdArgs& a) {
  float* buffer = a.momentum != 0 ? floats(a.momentum_buffer) : nullptr;
  to = {.param = floats(a.param),
        .grad = floats(a.grad),
        .buffer = buffer,
        .cut = cut<kCount>(a.param.numel(), floats(a.param), floats(a.grad), buffer),
        .coefficients = sgd_coefficients(a, 1.0F)};
}

/// Blocks for one tensor.
std::int64_t grid_of(const Cut& cut) { return Grid::over(std::max((cut.vectors + kPacks - 1) / kPacks, cut.n - cut.vectors * kCount)).x; }

template <class Tensor, class Args>
void launch_for(Stream& s, const char* what, std::span<const Args> list, const Shared& shared, void (*kernel)(Table<Tensor>, Shared)) {
  static_assert(sizeof(Table<Tensor>) + sizeof(Shared) <= 4096);
  for (std::size_t begin = 0; begin < list.size(); begin += Table<Tensor>::kMost) {
    const auto part = list.subspan(begin, std::min<std::size_t>(Table<Tensor>::kMost, list.size() - begin));
    Table<Tensor> table{};
    std::int64_t blocks = 0;
    for (const Args& args : part) {
      if (args.param.numel() == 0) continue;
      table.first_block[table.count] = static_cast<int>(blocks);
      set(table.tensor[table.count], args);
      blocks += grid_of(table.tensor[table.count++].cut);
    }
    if (blocks > 0) launch(s, what, accesses_of(part), Grid{blocks}, kernel, table, shared);
  }
}

}  // namespace

void CudaKernels::adamw(Stream& s, std::span<const AdamWArgs> list) {
  check_adamw(list, {DType::f32});
  if (list.empty()) return;
  const AdamWArgs& first = list.front();
  const Shared shared{floats(first.grad_scale), floats(first.skip), floats(first.skipped_steps)};
  if (first.skipped_steps) {
    launch_for(s, "adamw", list, shared, adamw_kernel<AdamWOptions>);
  } else {
    launch_for(s, "adamw", list, shared, adamw_kernel<AdamWCoefficients>);
  }
}

void CudaKernels::sgd(Stream& s, std::span<const SgdArgs> list) {
  check_sgd(list, {DType::f32});
  if (list.empty()) return;
  launch_for(s, "sgd", list, {floats(list.front().grad_scale), floats(list.front().skip), nullptr}, sgd_kernel);
}

}  // namespace mica::cuda
