// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/device/pool.hpp"
#include "mica/tensor/kernels.hpp"

#include "launch.hpp"

namespace mica::cuda {

/// What the blocks of a kernel left to be added up: [num, rows, cols] f32, rows 1 or 2.
struct BlockSums {
  const Buffer& space;
  std::int64_t num = 0, rows = 1, cols = 0;
};

/// first[cols] (+)= the first rows' sum over all blocks, second[cols] the second rows'; each of any floating-point
/// dtype, or absent. In f32 and in an order that depends on `num` alone.
void fold_sums(Stream& s, const char* what, const BlockSums& sums, TensorView first, TensorView second, Write mode);

}  // namespace mica::cuda
