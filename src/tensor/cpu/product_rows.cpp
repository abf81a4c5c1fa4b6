// SPDX-License-Identifier: Apache-2.0
#include "product_rows.hpp"

#include "loops.hpp"
#include "parallel.hpp"

namespace mica::cpu {

void round_rows(const float* sums, std::int64_t rows, std::int64_t cols, void* c, DType dtype, std::int64_t ldc, bool accumulate) {
  const Write mode = accumulate ? Write::accumulate : Write::overwrite;
  parallel_ranges(rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      loops().scale(sums + row * cols, DType::f32, 1.0F, element_at(c, dtype, row * ldc), dtype, mode, 0, cols);
    }
  });
}

}  // namespace mica::cpu
