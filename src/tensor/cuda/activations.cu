// SPDX-License-Identifier: Apache-2.0
#include "../element_math.hpp"
#include "../layer_arguments.hpp"
#include "../scalar_math.hpp"
#include "cuda_kernels.hpp"
#include "vectors.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

template <class T, Activation kF>
__global__ void activation_kernel(Cut cut, const T* x, T* y) {
  for_elements<kLanes<T>>(cut, [=](std::int64_t i, auto lanes) {
    const auto xs = load(x + i, lanes);
    store_each(y + i, lanes, [&](int l) { return element::activation<kF, ScalarMath>(xs.v[l]); });
  });
}

template <class T, Activation kF>
__global__ void activation_backward_kernel(Cut cut, const T* x, const T* dy, T* dx) {
  for_elements<kLanes<T>>(cut, [=](std::int64_t i, auto lanes) {
    const auto xs = load(x + i, lanes), dys = load(dy + i, lanes);
    store_each(dx + i, lanes, [&](int l) { return element::activation_gradient<kF, ScalarMath>(xs.v[l], dys.v[l]); });
  });
}

template <class T>
__global__ void swiglu_kernel(Cut cut, const T* gate, const T* up, T* y) {
  for_elements<kLanes<T>>(cut, [=](std::int64_t i, auto lanes) {
    const auto gates = load(gate + i, lanes), ups = load(up + i, lanes);
    store_each(y + i, lanes, [&](int l) { return element::silu<ScalarMath>(gates.v[l]) * ups.v[l]; });
  });
}

/// @param dgate, dup  either may be null
template <class T>
__global__ void swiglu_backward_kernel(Cut cut, const T* gate, const T* up, const T* dy, T* dgate, T* dup) {
  for_elements<kLanes<T>>(cut, [=](std::int64_t i, auto lanes) {
    const auto gates = load(gate + i, lanes), ups = load(up + i, lanes), dys = load(dy + i, lanes);
    Values<lanes.count> dgates, dups;
#pragma unroll
    for (int l = 0; l < lanes.count; ++l) {
      const auto silu = element::silu_with_slope<ScalarMath>(gates.v[l]);
      dgates.v[l] = dys.v[l] * ups.v[l] * silu.slope;
      dups.v[l] = dys.v[l] * silu.value;
    }
    if (dgate != nullptr) store(dgate + i, dgates, lanes);
    if (dup != nullptr) store(dup + i, dups, lanes);
  });
}

}  // namespace

void CudaKernels::activation(Stream& s, Activation f, ConstTensorView x, TensorView y) {
  const std::int64_t n = check_activation(f, x, y);
  const char* what = activation_name(f).forward;
  if (n == 0) return;
  with_element(x.dtype, [&](auto element) {
    using T = decltype(element);
    const auto* from = static_cast<const T*>(x.data);
    auto* to = static_cast<T*>(y.data);
    const Cut range = cut<kLanes<T>>(n, from, to);
    if (range.vectors == 0) slow_paths_.note_one_by_one(what, y.shape, y.dtype);
    element::with_activation(f, [&](auto chosen) {
      launch(s, what, {reads(x), mica::writes(y)}, range.grid(kLanes<T>), activation_kernel<T, decltype(chosen)::value>, range, from, to);
    });
  });
}

void CudaKernels::activation_backward(Stream& s, Activation f, ConstTensorView x, ConstTensorView dy, TensorView dx) {
  const std::int64_t n = check_activation_backward(f, x, dy, dx);
  const char* what = activation_name(f).backward;
  if (n == 0) return;
  with_element(x.dtype, [&](auto element) {
    using T = decltype(element);
    const auto *xs = static_cast<const T*>(x.data), *dys = static_cast<const T*>(dy.data);
    auto* to = static_cast<T*>(dx.data);
    const Cut range = cut<kLanes<T>>(n, xs, dys, to);
    if (range.vectors == 0) slow_paths_.note_one_by_one(what, dx.shape, dx.dtype);
    element::with_activation(f, [&](auto chosen) {
      launch(s, what, {reads(x), reads(dy), mica::writes(dx)}, range.grid(kLanes<T>),
             activation_backward_kernel<T, decltype(chosen)::value>, range, xs, dys, to);
    });
  });
}

void CudaKernels::swiglu(Stream& s, ConstTensorView gate, ConstTensorView up, TensorView y) {
  const std::int64_t n = check_swiglu(gate, up, y);
  if (n == 0) return;
  with_element(gate.dtype, [&](auto element) {
    using T = decltype(element);
    const auto *gates = static_cast<const T*>(gate.data), *ups = static_cast<const T*>(up.data);
    auto* to = static_cast<T*>(y.data);
    const Cut range = cut<kLanes<T>>(n, gates, ups, to);
    if (range.vectors == 0) slow_paths_.note_one_by_one("swiglu", y.shape, y.dtype);
    launch(s, "swiglu", {reads(gate), reads(up), mica::writes(y)}, range.grid(kLanes<T>), swiglu_kernel<T>, range, gates, ups, to);
  });
}

void CudaKernels::swiglu_backward(Stream& s, ConstTensorView gate, ConstTensorView up, ConstTensorView dy, TensorView dgate,
                                  TensorView dup) {
  const std::int64_t n = check_swiglu_backward(gate, up, dy, dgate, dup);
  if (n == 0) return;
  with_element(gate.dtype, [&](auto element) {
    using T = decltype(element);
    const auto *gates = static_cast<const T*>(gate.data), *ups = static_cast<const T*>(up.data), *dys = static_cast<const T*>(dy.data);
    auto *to_gate = static_cast<T*>(dgate.data), *to_up = static_cast<T*>(dup.data);
    const Cut range = cut<kLanes<T>>(n, gates, ups, dys, to_gate, to_up);
    if (range.vectors == 0) slow_paths_.note_one_by_one("swiglu_backward", dy.shape, dy.dtype);
    launch(s, "swiglu_backward", {reads(gate), reads(up), reads(dy), mica::writes(dgate), mica::writes(dup)}, range.grid(kLanes<T>),
           swiglu_backward_kernel<T>, range, gates, ups, dys, to_gate, to_up);
  });
}

}  // namespace mica::cuda
