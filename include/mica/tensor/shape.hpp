// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "mica/core/error.hpp"

namespace mica {

/// The extents of a row-major tensor, at most 5 dims. Shape{} is a scalar with numel 1.
class Shape {
 public:
  static constexpr std::size_t kMaxDims = 5;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span<const std::int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const std::int64_t> dims) : num_dims_(dims.size()) {
    invariant(dims.size() <= kMaxDims, "Shape has at most 5 dims");
    for (std::size_t i = 0; i < dims.size(); ++i) dims_[i] = dims[i];
  }

  [[nodiscard]] std::size_t num_dims() const { return num_dims_; }
  [[nodiscard]] std::int64_t operator[](std::size_t dim) const { return dims_[dim]; }
  [[nodiscard]] std::int64_t back() const { return dims_[num_dims_ - 1]; }
  [[nodiscard]] std::span<const std::int64_t> dims() const { return {dims_.data(), num_dims_}; }
  [[nodiscard]] std::int64_t numel() const {
    std::int64_t n = 1;
    for (std::size_t i = 0; i < num_dims_; ++i) n *= dims_[i];
    return n;
  }
  /// numel / last dim: the number of rows when the tensor is seen as a matrix.
  [[nodiscard]] std::int64_t rows() const { return num_dims_ == 0 ? 1 : (back() == 0 ? 0 : numel() / back()); }
  /// "[4, 256, 768]"
  [[nodiscard]] std::string to_string() const;

  friend bool operator==(const Shape& a, const Shape& b) { return a.num_dims_ == b.num_dims_ && a.dims_ == b.dims_; }

 private:
  std::array<std::int64_t, kMaxDims> dims_{};
  std::size_t num_dims_ = 0;
};

}  // namespace mica
