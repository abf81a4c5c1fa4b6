// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/device/pool.hpp"
#include "mica/tensor/kernels.hpp"

#include "launch.hpp"

namespace mica::cuda {

/// Partial sums of a kernel's blocks: [num, rows, cols] f32, rows 1 or 2.
struct BlockSums {
  const Buffer& space;
  std::int64_t num = 0, rows = 1, cols = 0;
};

/// first[cols] (+)= the first rows' sum over all blocks, second[cols] the second rows'; each of any floating-point
/// dtype, or absent. Adds in f32, in an order that depends only on `num`.
void fold_sums(Stream& s, const char* what, const BlockSums& sums, TensorView first, TensorView second, Write mode);

}  // namespace mica::cuda
