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

/// The state of a range of elements.
struct AdamW {
  float* param;
  const float* grad;
  float *exp_avg, *exp_avg_sq;
  const float *grad_scale, *skip, *skipped_steps;  // [1] each, or null
};

/// The coefficients are made on the device, which knows how many steps were skipped: by one thread of each block.
__global__ void adamw_kernel(Cut cut, AdamW a, AdamWArgs args) {
  __shared__ AdamWCoefficients shared;
  if (value_or(a.skip, 0.0F) != 0.0F) return;
  if (threadIdx.x == 0)
    shared = adamw_coefficients(args, value_or(a.grad_scale, 1.0F), value_or(a.skipped_steps, 0.0F));
  __syncthreads();
  const AdamWCoefficients c = shared;
  for_elements<kCount>(cut, [=](std::int64_t i, auto lanes) {
    const auto g = load(a.grad + i, lanes);
    auto p = load(a.param + i, lanes), m = load(a.exp_avg + i, lanes), v = load(a.exp_avg_sq + i, lanes);
#pragma unroll
    for (int l = 0; l < lanes.count; ++l) adamw_update<ScalarMath>(c, g.v[l], p.v[l], m.v[l], v.v[l]);
    store(a.param + i, p, lanes);
    store(a.exp_avg + i, m, lanes);
    store(a.exp_avg_sq + i, v, lanes);
  });
}

/// @param buffer  null without momentum
__global__ void sgd_kernel(Cut cut, SgdCoefficients c, float* param, const float* grad, float* buffer,
                           const float* grad_scale, const float* skip) {
  if (value_or(skip, 0.0F) != 0.0F) return;
  c.grad_scale = value_or(grad_scale, 1.0F);
  for_elements<kCount>(cut, [=](std::int64_t i, auto lanes) {
    const auto g = load(grad + i, lanes);
    auto p = load(param + i, lanes);
    if (buffer != nullptr) {
      auto b = load(buffer + i, lanes);
#pragma unroll
      for (int l = 0; l < lanes.count; ++l) sgd_update(c, g.v[l], p.v[l], b.v[l]);
      store(buffer + i, b, lanes);
    } else {
#pragma unroll
      for (int l = 0; l < lanes.count; ++l) sgd_update(c, g.v[l], p.v[l]);
    }
    store(param + i, p, lanes);
  });
}

float* floats(const TensorView& view) { return static_cast<float*>(view.data); }
const float* floats(const ConstTensorView& view) { return static_cast<const float*>(view.data); }

}  // namespace

void CudaKernels::adamw(Stream& s, const AdamWArgs& args) {
  const std::int64_t n = args.param.numel();
  check_adamw(args);
  if (n == 0) return;
  const AdamW a{.param = floats(args.param),
                .grad = floats(args.grad),
                .exp_avg = floats(args.exp_avg),
                .exp_avg_sq = floats(args.exp_avg_sq),
                .grad_scale = floats(args.grad_scale),
                .skip = floats(args.skip),
                .skipped_steps = floats(args.skipped_steps)};
  const Cut range = cut<kCount>(n, a.param, a.grad, a.exp_avg, a.exp_avg_sq);
  launch(s, "adamw",
         {mica::writes(args.param), reads(args.grad), mica::writes(args.exp_avg), mica::writes(args.exp_avg_sq),
          reads(args.grad_scale), reads(args.skip), reads(args.skipped_steps)},
         range.grid(kCount), adamw_kernel, range, a, args);
}

void CudaKernels::sgd(Stream& s, const SgdArgs& args) {
  const std::int64_t n = args.param.numel();
  check_sgd(args);
  if (n == 0) return;
  float* buffer = args.momentum != 0 ? floats(args.momentum_buffer) : nullptr;
  const Cut range = cut<kCount>(n, floats(args.param), floats(args.grad), buffer);
  launch(s, "sgd",
         {mica::writes(args.param), reads(args.grad), mica::writes(args.momentum_buffer), reads(args.grad_scale),
          reads(args.skip)},
         range.grid(kCount), sgd_kernel, range, sgd_coefficients(args, 1.0F), floats(args.param), floats(args.grad),
         buffer, floats(args.grad_scale), floats(args.skip));
}

}  // namespace mica::cuda
