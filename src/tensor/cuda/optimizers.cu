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

/// What all tensors of a step share: [1] each, or null.
struct Shared {
  const float *grad_scale, *skip, *skipped_steps;
};

/// [Note: many tensors in one launch] A launch steps a few dozen tensors, which its parameters list (4096 bytes is what
/// every driver takes). Each has a run of blocks of its own, as many as a launch for it alone would have.
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

/// body(i, lanes) for this block's elements of its tensor.
template <class Tensor, class Body>
__device__ void for_elements_of(const Table<Tensor>& table, int t, const Cut& cut, Body body) {
  const int end = t + 1 < table.count ? table.first_block[t + 1] : static_cast<int>(gridDim.x);
  for_elements<kCount>(cut, static_cast<int>(blockIdx.x) - table.first_block[t], end - table.first_block[t], body);
}

/// With the options that adamw_coefficients() reads.
struct AdamWTensor {
  float* param;
  const float* grad;
  float *exp_avg, *exp_avg_sq;
  Cut cut;
  double lr, beta1, beta2, eps, weight_decay;
  std::int64_t step;
};

/// The coefficients are made on the device, which knows how many steps were skipped: by one thread of each block.
__global__ void adamw_kernel(Table<AdamWTensor> table, Shared shared) {
  __shared__ AdamWCoefficients of_block;
  if (value_or(shared.skip, 0.0F) != 0.0F) return;
  const int index = table.tensor_of(static_cast<int>(blockIdx.x));
  const AdamWTensor a = table.tensor[index];
  if (threadIdx.x == 0) {
    of_block = adamw_coefficients(a, value_or(shared.grad_scale, 1.0F), value_or(shared.skipped_steps, 0.0F));
  }
  __syncthreads();
  const AdamWCoefficients c = of_block;
  for_elements_of(table, index, a.cut, [=](std::int64_t i, auto lanes) {
    const auto g = load(a.grad + i, lanes);
    auto p = load(a.param + i, lanes), m = load(a.exp_avg + i, lanes), v = load(a.exp_avg_sq + i, lanes);
#pragma unroll
    for (int l = 0; l < lanes.count; ++l) adamw_update<ScalarMath>(c, g.v[l], p.v[l], m.v[l], v.v[l]);
    store(a.param + i, p, lanes);
    store(a.exp_avg + i, m, lanes);
    store(a.exp_avg_sq + i, v, lanes);
  });
}

struct SgdTensor {
  float* param;
  const float* grad;
  float* buffer;  // null without momentum
  Cut cut;
  SgdCoefficients coefficients;
};

__global__ void sgd_kernel(Table<SgdTensor> table, Shared shared) {
  if (value_or(shared.skip, 0.0F) != 0.0F) return;
  const int index = table.tensor_of(static_cast<int>(blockIdx.x));
  const SgdTensor t = table.tensor[index];
  SgdCoefficients c = t.coefficients;
  c.grad_scale = value_or(shared.grad_scale, 1.0F);
  for_elements_of(table, index, t.cut, [=](std::int64_t i, auto lanes) {
    const auto g = load(t.grad + i, lanes);
    auto p = load(t.param + i, lanes);
    if (t.buffer != nullptr) {
      auto b = load(t.buffer + i, lanes);
#pragma unroll
      for (int l = 0; l < lanes.count; ++l) sgd_update(c, g.v[l], p.v[l], b.v[l]);
      store(t.buffer + i, b, lanes);
    } else {
#pragma unroll
      for (int l = 0; l < lanes.count; ++l) sgd_update(c, g.v[l], p.v[l]);
    }
    store(t.param + i, p, lanes);
  });
}

float* floats(const TensorView& view) { return static_cast<float*>(view.data); }
const float* floats(const ConstTensorView& view) { return static_cast<const float*>(view.data); }

AdamWTensor tensor_of(const AdamWArgs& a) {
  return {.param = floats(a.param),
          .grad = floats(a.grad),
          .exp_avg = floats(a.exp_avg),
          .exp_avg_sq = floats(a.exp_avg_sq),
          .cut = cut<kCount>(a.param.numel(), floats(a.param), floats(a.grad), floats(a.exp_avg), floats(a.exp_avg_sq)),
          .lr = a.lr,
          .beta1 = a.beta1,
          .beta2 = a.beta2,
          .eps = a.eps,
          .weight_decay = a.weight_decay,
          .step = a.step};
}

SgdTensor tensor_of(const SgdArgs& a) {
  float* buffer = a.momentum != 0 ? floats(a.momentum_buffer) : nullptr;
  return {.param = floats(a.param),
          .grad = floats(a.grad),
          .buffer = buffer,
          .cut = cut<kCount>(a.param.numel(), floats(a.param), floats(a.grad), buffer),
          .coefficients = sgd_coefficients(a, 1.0F)};
}

template <class Tensor, class Args>
void launch_for(Stream& s, const char* what, std::span<const Args> list, const Shared& shared,
                void (*kernel)(Table<Tensor>, Shared)) {
  static_assert(sizeof(Table<Tensor>) + sizeof(Shared) <= 4096);
  for (std::size_t begin = 0; begin < list.size(); begin += Table<Tensor>::kMost) {
    const auto part = list.subspan(begin, std::min<std::size_t>(Table<Tensor>::kMost, list.size() - begin));
    Table<Tensor> table{};
    std::int64_t blocks = 0;
    for (const Args& args : part) {
      if (args.param.numel() == 0) continue;
      table.first_block[table.count] = static_cast<int>(blocks);
      table.tensor[table.count] = tensor_of(args);
      blocks += table.tensor[table.count++].cut.grid(kCount).x;
    }
    if (blocks > 0) launch(s, what, accesses_of(part), Grid{blocks}, kernel, table, shared);
  }
}

}  // namespace

void CudaKernels::adamw(Stream& s, std::span<const AdamWArgs> list) {
  check_adamw(list);
  if (list.empty()) return;
  const AdamWArgs& first = list.front();
  launch_for<AdamWTensor>(s, "adamw", list,
                          {floats(first.grad_scale), floats(first.skip), floats(first.skipped_steps)}, adamw_kernel);
}

void CudaKernels::sgd(Stream& s, std::span<const SgdArgs> list) {
  check_sgd(list);
  if (list.empty()) return;
  launch_for<SgdTensor>(s, "sgd", list, {floats(list.front().grad_scale), floats(list.front().skip), nullptr},
                        sgd_kernel);
}

}  // namespace mica::cuda
