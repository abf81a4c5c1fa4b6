// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "../arguments.hpp"
#include "cuda_kernels.hpp"
#include "vectors.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

template <class T>
__global__ void add_kernel(Cut cut, const T* a, const T* b, T* y) {
  for_elements<kLanes<T>>(cut, [=](std::int64_t i, auto lanes) {
    const auto as = load(a + i, lanes), bs = load(b + i, lanes);
    store_each(y + i, lanes, [&](int l) { return as.v[l] + bs.v[l]; });
  });
}

template <class From, class To>
__global__ void scale_kernel(Cut cut, const From* src, float factor, To* dst, bool accumulate) {
  for_elements<kLanes<From, To>>(cut, [=](std::int64_t i, auto lanes) {
    const auto from = load(src + i, lanes);
    if (accumulate) {
      const auto to = load(dst + i, lanes);
      store_each(dst + i, lanes, [&](int l) { return to.v[l] + factor * from.v[l]; });
    } else {
      store_each(dst + i, lanes, [&](int l) { return factor * from.v[l]; });
    }
  });
}

template <class T>
__global__ void scale_by_kernel(Cut cut, T* x, const float* factor) {
  const float f = *factor;
  if (f == 1.0F) return;
  for_elements<kLanes<T>>(cut, [=](std::int64_t i, auto lanes) {
    const auto from = load(x + i, lanes);
    store_each(x + i, lanes, [&](int l) { return from.v[l] * f; });
  });
}

template <class Word>
__global__ void fill_kernel(Cut cut, Word* x, Word value) {
  for_elements<kLanes<Word>>(cut, [=](std::int64_t i, auto lanes) {
    Packed<Word, lanes.count> packed;
#pragma unroll
    for (int l = 0; l < lanes.count; ++l) packed.element[l] = value;
    *reinterpret_cast<decltype(packed)*>(x + i) = packed;
  });
}

void enqueue_scale(Stream& s, SlowPaths& slow_paths, const char* what, ConstTensorView src, float factor, TensorView dst, Write mode) {
  with_element(src.dtype, [&](auto from_element) {
    with_element(dst.dtype, [&](auto to_element) {
      using From = decltype(from_element);
      using To = decltype(to_element);
      constexpr int kCount = kLanes<From, To>;
      const auto* from = static_cast<const From*>(src.data);
      auto* to = static_cast<To*>(dst.data);
      const Cut range = cut<kCount>(dst.numel(), from, to);
      if (range.vectors == 0) slow_paths.note_one_by_one(what, dst.shape, dst.dtype);
      launch(s, what, {reads(src), mica::writes(dst)}, range.grid(kCount), scale_kernel<From, To>, range, from, factor, to,
             mode == Write::accumulate);
    });
  });
}

template <class Word, class Value>
void enqueue_fill(Stream& s, TensorView x, Value value) {
  static_assert(sizeof(Word) == sizeof(Value));
  Word word;
  std::memcpy(&word, &value, sizeof word);
  auto* to = static_cast<Word*>(x.data);
  const Cut range = cut<kLanes<Word>>(x.numel(), to);
  launch(s, "fill", {mica::writes(x)}, range.grid(kLanes<Word>), fill_kernel<Word>, range, to, word);
}

}  // namespace

void CudaKernels::add(Stream& s, ConstTensorView a, ConstTensorView b, TensorView y) {
  const std::int64_t n = y.numel();
  expect("add", "y", y, n, kFloats);
  expect("add", "a", a, n, {y.dtype});
  expect("add", "b", b, n, {y.dtype});
  if (n == 0) return;
  with_element(y.dtype, [&](auto element) {
    using T = decltype(element);
    const auto *as = static_cast<const T*>(a.data), *bs = static_cast<const T*>(b.data);
    auto* to = static_cast<T*>(y.data);
    const Cut range = cut<kLanes<T>>(n, as, bs, to);
    if (range.vectors == 0) slow_paths_.note_one_by_one("add", y.shape, y.dtype);
    launch(s, "add", {reads(a), reads(b), mica::writes(y)}, range.grid(kLanes<T>), add_kernel<T>, range, as, bs, to);
  });
}

void CudaKernels::scale(Stream& s, ConstTensorView src, double factor, TensorView dst, Write mode) {
  const std::int64_t n = dst.numel();
  expect("scale", "dst", dst, n, kFloats);
  expect("scale", "src", src, n, kFloats);
  if (n > 0) enqueue_scale(s, slow_paths_, "scale", src, static_cast<float>(factor), dst, mode);
}

void CudaKernels::scale_by(Stream& s, TensorView x, ConstTensorView factor) {
  const std::int64_t n = x.numel();
  expect("scale_by", "x", x, n, kFloats);
  expect("scale_by", "factor", factor, 1, {DType::f32});
  if (n == 0) return;
  with_element(x.dtype, [&](auto element) {
    using T = decltype(element);
    auto* to = static_cast<T*>(x.data);
    const Cut range = cut<kLanes<T>>(n, to);
    launch(s, "scale_by", {reads(factor), mica::writes(x)}, range.grid(kLanes<T>), scale_by_kernel<T>, range, to,
           static_cast<const float*>(factor.data));
  });
}

/// Multiplying by 1 is exact. Kernels cannot access pageable host memory: data for it are copied through device memory.
void CudaKernels::copy_converting(Stream& s, ConstTensorView src, TensorView dst) {
  const bool is_dry = s.device() == DeviceKind::cpu;  // a plan: nothing will run, and addresses are nobody's
  const auto is_pageable = [is_dry](const void* data) {
    if (is_dry) return false;
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
    return attributes.type == cudaMemoryTypeUnregistered;
  };
  if (is_pageable(src.data)) {
    const Buffer moved = scratch(s, src.bytes());
    const TensorView on_device{moved.data(), src.shape, src.dtype};
    copy(s, src, on_device);
    return copy_converting(s, on_device, dst);
  }
  if (is_pageable(dst.data)) {
    const Buffer converted = scratch(s, dst.bytes());
    const TensorView on_device{converted.data(), dst.shape, dst.dtype};
    enqueue_scale(s, slow_paths_, "copy", src, 1.0F, on_device, Write::overwrite);
    return copy(s, on_device, dst);
  }
  enqueue_scale(s, slow_paths_, "copy", src, 1.0F, dst, Write::overwrite);
}

void CudaKernels::copy(Stream& s, ConstTensorView src, TensorView dst) {
  const std::int64_t n = dst.numel();
  expect("copy", "dst", dst, n, {dst.dtype});
  if (src.dtype != dst.dtype) {
    expect("copy", "src", src, n, kFloats);
    expect_dtype("copy", "dst", dst, kFloats);
    if (n > 0) copy_converting(s, src, dst);
    return;
  }
  expect("copy", "src", src, n, {dst.dtype});
  if (n == 0) return;
  s.submit("copy", {reads(src), mica::writes(dst)}, [src, dst, stream = native(s)] {
    // Either side may be page-locked host memory; cudaMemcpyDefault finds out.
    check(cudaMemcpyAsync(dst.data, src.data, static_cast<std::size_t>(dst.bytes()), cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  });
}

void CudaKernels::fill(Stream& s, TensorView x, double value) {
  expect("fill", "x", x, x.numel(), {x.dtype});
  if (x.numel() == 0) return;
  switch (x.dtype) {
    case DType::f64:
      return enqueue_fill<std::uint64_t>(s, x, value);
    case DType::i64:
      return enqueue_fill<std::uint64_t>(s, x, static_cast<std::int64_t>(value));
    case DType::f32:
      return enqueue_fill<std::uint32_t>(s, x, static_cast<float>(value));
    case DType::i32:
      return enqueue_fill<std::uint32_t>(s, x, static_cast<std::int32_t>(value));
    case DType::bf16:
      return enqueue_fill<std::uint16_t>(s, x, bf16(static_cast<float>(value)));
    case DType::f16:
      return enqueue_fill<std::uint16_t>(s, x, f16(static_cast<float>(value)));
    case DType::u16:
      return enqueue_fill<std::uint16_t>(s, x, static_cast<std::uint16_t>(value));
    case DType::u8:
      return enqueue_fill<std::uint8_t>(s, x, static_cast<std::uint8_t>(value));
    case DType::moment8:
    case DType::square8:
      refuse("fill", "x", x, "a dtype that GPUs know");
  }
}

}  // namespace mica::cuda
