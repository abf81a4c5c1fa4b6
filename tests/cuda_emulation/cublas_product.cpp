// SPDX-License-Identifier: Apache-2.0
#include "cublas_product.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "mica/core/half.hpp"

namespace mica::cuda_emulation {

namespace {

constexpr std::int64_t kRows = 256, kInner = 64, kCols = 4;  // a block of A stays in the second cache

/// To nearest, ties to even, as the conversion of tensor cores' operands.
float to_tf32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7f800000U) == 0x7f800000U) return value;
  return std::bit_cast<float>((bits + 0xfffU + ((bits >> 13) & 1U)) & ~0x1fffU);
}

/// `block` [cols][kRows] += a [inner][step], its first `rows` columns, times b [cols][inner of b_step].
void add_block(const float* a, std::int64_t step, const float* b, std::int64_t b_step, std::int64_t inner, std::int64_t rows,
               std::int64_t cols, float* __restrict__ block) {
  for (std::int64_t p = 0; p < inner; ++p) {
    const float* __restrict__ from = a + p * step;
    for (std::int64_t j = 0; j < cols; ++j) {
      const float factor = b[j * b_step + p];
      float* __restrict__ to = block + j * kRows;
      for (std::int64_t i = 0; i < rows; ++i) to[i] += factor * from[i];
    }
  }
}

}  // namespace

float load(const void* data, std::uint32_t type, std::int64_t index) {
  switch (type) {
    case CUDA_R_16BF:
      return static_cast<float>(static_cast<const bf16*>(data)[index]);
    case CUDA_R_16F:
      return static_cast<float>(static_cast<const f16*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

void store(void* data, std::uint32_t type, std::int64_t index, float value) {
  switch (type) {
    case CUDA_R_16BF:
      static_cast<bf16*>(data)[index] = bf16(value);
      break;
    case CUDA_R_16F:
      static_cast<f16*>(data)[index] = f16(value);
      break;
    default:
      static_cast<float*>(data)[index] = value;
  }
}

Matrix::Matrix(const void* data, const cublasLtMatrixLayoutOpaque_t& layout, std::int32_t operation, std::int64_t batch)
    : data_(const_cast<void*>(data)),
      type_(layout.type),
      rows_(static_cast<std::int64_t>(layout.rows)),
      cols_(static_cast<std::int64_t>(layout.cols)),
      row_step_(layout.order == CUBLASLT_ORDER_COL ? 1 : layout.ld),
      col_step_(layout.order == CUBLASLT_ORDER_COL ? layout.ld : 1) {
  const std::int64_t element_bytes = type_ == CUDA_R_32F ? 4 : 2;
  if (data_ != nullptr) data_ = static_cast<char*>(data_) + batch * layout.batch_stride * element_bytes;
  if (operation != CUBLAS_OP_N) {
    std::swap(rows_, cols_);
    std::swap(row_step_, col_step_);
  }
}

float Matrix::load(std::int64_t index) const { return cuda_emulation::load(data_, type_, index); }
void Matrix::set(std::int64_t row, std::int64_t col, float value) { store(data_, type_, row * row_step_ + col * col_step_, value); }

std::vector<float> multiply(const Matrix& a, const Matrix& b, bool tf32) {
  const std::int64_t m = a.rows(), k = a.cols(), n = b.cols();
  const auto factor = [tf32](float value) { return tf32 ? to_tf32(value) : value; };
  std::vector<float> left(static_cast<std::size_t>(k * m));   // [k][m]
  std::vector<float> right(static_cast<std::size_t>(n * k));  // [n][k]
  for (std::int64_t p = 0; p < k; ++p) {
    for (std::int64_t i = 0; i < m; ++i) left[static_cast<std::size_t>(p * m + i)] = factor(a.at(i, p));
  }
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t p = 0; p < k; ++p) right[static_cast<std::size_t>(j * k + p)] = factor(b.at(p, j));
  }
  std::vector<float> product(static_cast<std::size_t>(n * m));  // [n][m]
  std::vector<float> block(kCols * kRows);
  for (std::int64_t i = 0; i < m; i += kRows) {
    const std::int64_t rows = std::min(kRows, m - i);
    for (std::int64_t p = 0; p < k; p += kInner) {
      for (std::int64_t j = 0; j < n; j += kCols) {
        const std::int64_t cols = std::min(kCols, n - j);
        std::fill(block.begin(), block.end(), 0.0F);
        add_block(left.data() + p * m + i, m, right.data() + j * k + p, k, std::min(kInner, k - p), rows, cols, block.data());
        for (std::int64_t c = 0; c < cols; ++c) {
          float* to = product.data() + (j + c) * m + i;
          for (std::int64_t r = 0; r < rows; ++r) to[r] += block[static_cast<std::size_t>(c * kRows + r)];
        }
      }
    }
  }
  return product;
}

}  // namespace mica::cuda_emulation
