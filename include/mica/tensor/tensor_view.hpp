// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

#include "mica/core/dtype.hpp"
#include "mica/core/half.hpp"
#include "mica/device/stream.hpp"
#include "mica/tensor/shape.hpp"

namespace mica {

/// A contiguous row-major array, not owned. A null `data` with numel > 0 means "absent".
template <bool kConst>
struct BasicTensorView {
  using Void = std::conditional_t<kConst, const void, void>;
  using Byte = std::conditional_t<kConst, const std::byte, std::byte>;

  Void* data = nullptr;
  Shape shape{0};
  DType dtype = DType::f32;

  BasicTensorView() = default;
  BasicTensorView(Void* data_, Shape shape_, DType dtype_) : data(data_), shape(shape_), dtype(dtype_) {}
  /// A mutable view converts to a const one.
  template <bool kOther>
  requires(kConst && !kOther) BasicTensorView(const BasicTensorView<kOther>& other)  // NOLINT(google-explicit-constructor)
      : data(other.data), shape(other.shape), dtype(other.dtype) {}

  [[nodiscard]] explicit operator bool() const { return data != nullptr; }
  [[nodiscard]] std::int64_t numel() const { return shape.numel(); }
  [[nodiscard]] std::int64_t bytes() const { return numel() * dtype_bytes(dtype); }

  /// The elements as T. Aborts if T is not the dtype.
  template <class T>
  [[nodiscard]] std::conditional_t<kConst, const T, T>* as() const {
    invariant(dtype_of<T>::value == dtype, "TensorView::as<T>() with the view's own dtype");
    return static_cast<std::conditional_t<kConst, const T, T>*>(data);
  }

  /// Elements [begin, begin + count) of the flattened array, as a 1-D view.
  [[nodiscard]] BasicTensorView slice(std::int64_t begin, std::int64_t count) const {
    invariant(begin >= 0 && count >= 0 && begin + count <= numel(), "slice inside the view");
    return {data ? static_cast<Byte*>(data) + begin * dtype_bytes(dtype) : nullptr, Shape{count}, dtype};
  }
  /// The same elements under another shape of equal numel.
  [[nodiscard]] BasicTensorView reshaped(Shape other) const {
    invariant(other.numel() == numel(), "reshaped() keeps the numel");
    return {data, other, dtype};
  }
};

using TensorView = BasicTensorView<false>;
using ConstTensorView = BasicTensorView<true>;

[[nodiscard]] inline Access reads(const ConstTensorView& view) { return reads(view.data, view.data ? view.bytes() : 0); }
[[nodiscard]] inline Access writes(const TensorView& view) { return writes(view.data, view.data ? view.bytes() : 0); }

}  // namespace mica
