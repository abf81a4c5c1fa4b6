// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "cublas_descriptors.hpp"

namespace mica::cuda_emulation {

/// Elements of a matrix that may stand in either order, may be transposed and of any floating type.
class Matrix {
 public:
  Matrix(const void* data, const cublasLtMatrixLayoutOpaque_t& layout, std::int32_t operation, std::int64_t batch);

  [[nodiscard]] std::int64_t rows() const { return rows_; }  ///< after the operation
  [[nodiscard]] std::int64_t cols() const { return cols_; }
  [[nodiscard]] float at(std::int64_t row, std::int64_t col) const { return load(row * row_step_ + col * col_step_); }
  void set(std::int64_t row, std::int64_t col, float value);

 private:
  [[nodiscard]] float load(std::int64_t index) const;

  void* data_;
  std::uint32_t type_;
  std::int64_t rows_, cols_, row_step_, col_step_;
};

/// Number `index` of an array of that type.
[[nodiscard]] float load(const void* data, std::uint32_t type, std::int64_t index);
void store(void* data, std::uint32_t type, std::int64_t index, float value);

/// a[m,k] b[k,n] in f32, by columns; sums of 64 products are added up. `tf32`: factors are rounded to 10 bits first.
[[nodiscard]] std::vector<float> multiply(const Matrix& a, const Matrix& b, bool tf32);

}  // namespace mica::cuda_emulation
