// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: the time that a step's matrix products alone need.

#include <tuple>
#include <vector>

#include "mica/mpi/communicator.hpp"
#include "mica/tensor/kernels.hpp"

namespace mica::train::bench {

/// Equal for products that take the same time.
[[nodiscard]] inline auto key_of(const ProductShape& p) { return std::tuple(p.m, p.n, p.k, p.transposed_a, p.transposed_b, p.dtype); }

/// 2 m n k, summed.
[[nodiscard]] double flops_of(const std::vector<ProductShape>& products);

/// Seconds that plain oneDNN needs for these products on the slowest rank, with all ranks computing them at once: no run
/// with these products can be faster on this machine. Times each shape a few times and multiplies. @collective: the same
/// list on all ranks.
[[nodiscard]] double product_bound_s(const mpi::Communicator& world, const std::vector<ProductShape>& products);

}  // namespace mica::train::bench
