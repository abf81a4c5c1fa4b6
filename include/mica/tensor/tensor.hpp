// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "mica/device/pool.hpp"
#include "mica/tensor/tensor_view.hpp"

namespace mica {

/// A view with shared ownership of its memory: what modules pass to each other.
/// Copies share the elements. A default-constructed Tensor is absent (for example an output without gradient).
class Tensor {
 public:
  Tensor() = default;
  Tensor(Buffer buffer, Shape shape, DType dtype)
      : owner_(std::make_shared<Buffer>(std::move(buffer))), view_(owner_->data(), shape, dtype) {}
  /// Memory that outlives the tensor (tests, staged input batches).
  explicit Tensor(TensorView borrowed) : view_(borrowed) {}

  [[nodiscard]] explicit operator bool() const { return view_.data != nullptr; }
  [[nodiscard]] const TensorView& view() const { return view_; }
  operator TensorView() const { return view_; }       // NOLINT(google-explicit-constructor)
  operator ConstTensorView() const { return view_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] const Shape& shape() const { return view_.shape; }
  [[nodiscard]] DType dtype() const { return view_.dtype; }
  [[nodiscard]] std::int64_t numel() const { return view_.numel(); }
  [[nodiscard]] Tensor reshaped(Shape shape) const {
    Tensor other = *this;
    other.view_ = view_.reshaped(shape);
    return other;
  }
  /// Whether no other handle shares the memory and it is not borrowed, so that the holder may overwrite the elements.
  [[nodiscard]] bool is_unique() const { return owner_ && owner_.use_count() == 1; }
  /// Another stream's last use of the memory (see Buffer::used_until). No-op for borrowed memory.
  void used_until(const Event& event) const {
    if (owner_) owner_->used_until(event);
  }

  /// Whether a gradient with respect to this tensor is wanted.
  bool needs_grad = false;

 private:
  std::shared_ptr<Buffer> owner_;
  TensorView view_;
};

}  // namespace mica
