// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "mica/tensor/tensor.hpp"

namespace mica::fsdp {

/// One tensor of a state dict: `shape` elements that this rank holds. Copies share the elements.
/// A whole tensor has global_shape == shape and row_begin 0. A part of a tensor holds rows [row_begin, row_begin +
/// shape[0]) along dim 0 of `global_shape`; it may have no rows.
/// Example: rank 1 of 2 in a sharded state dict of a [5, 4] weight: shape [2, 4], global_shape [5, 4], row_begin 3.
class StateTensor {
 public:
  StateTensor() = default;
  /// With elements in the device's pool, or borrowed memory that outlives it.
  explicit StateTensor(Tensor tensor)
      : view_(tensor.view()), owner_(std::make_shared<Tensor>(std::move(tensor))), global_shape_(view_.shape) {}

  /// With uninitialised elements in its own host memory.
  static StateTensor on_host(Shape shape, DType dtype) {
    const auto bytes = static_cast<std::size_t>(shape.numel() * dtype_bytes(dtype));
    std::shared_ptr<void> owner(new std::byte[bytes], [](void* p) { delete[] static_cast<std::byte*>(p); });
    StateTensor made;
    made.view_ = {owner.get(), shape, dtype};
    made.owner_ = std::move(owner);
    made.global_shape_ = shape;
    made.is_on_host_ = true;
    return made;
  }

  [[nodiscard]] const TensorView& view() const { return view_; }
  [[nodiscard]] const Shape& shape() const { return view_.shape; }
  [[nodiscard]] DType dtype() const { return view_.dtype; }
  [[nodiscard]] std::int64_t numel() const { return view_.numel(); }
  /// Whether its elements are in host memory that belongs to no pool.
  [[nodiscard]] bool is_on_host() const { return is_on_host_; }

  [[nodiscard]] const Shape& global_shape() const { return global_shape_; }
  [[nodiscard]] std::int64_t row_begin() const { return row_begin_; }
  [[nodiscard]] bool is_whole() const { return global_shape_ == view_.shape; }
  /// Marks it as a part of a tensor.
  void set_part_of(Shape global_shape, std::int64_t row_begin) {
    global_shape_ = global_shape;
    row_begin_ = row_begin;
  }

 private:
  TensorView view_;
  std::shared_ptr<void> owner_;
  Shape global_shape_{0};
  std::int64_t row_begin_ = 0;
  bool is_on_host_ = false;
};

/// Rows along dim 0; a scalar has one.
[[nodiscard]] std::int64_t rows_of(const Shape& shape);
[[nodiscard]] std::int64_t row_numel_of(const Shape& shape);
/// Rows [begin, end) along dim 0.
struct Rows {
  std::int64_t begin = 0, end = 0;
};
/// The rows of one of n parts of a tensor that is cut along dim 0: ceil(d0 / n) rows, the last parts fewer or none. A scalar,
/// which cannot be cut, is whole in every part.
[[nodiscard]] Rows rows_of_part(const Shape& shape, std::int64_t part, std::int64_t num_parts);
/// The shape with another number of rows; a scalar is unchanged.
[[nodiscard]] Shape with_rows(const Shape& shape, std::int64_t rows);

/// Name -> tensor, in the order of the names (the same on every rank).
using StateDict = std::map<std::string, StateTensor, std::less<>>;

}  // namespace mica::fsdp
