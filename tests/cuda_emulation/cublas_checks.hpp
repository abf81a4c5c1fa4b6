// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cublas_descriptors.hpp"

namespace mica::cuda_emulation {

struct Epilogue {
  bool bias = false, gelu = false, aux_out = false, gelu_gradient = false;
  [[nodiscard]] bool has_aux() const { return aux_out || gelu_gradient; }
};

[[nodiscard]] std::uint64_t element_bytes(std::uint32_t type);

/// Whether cuBLASLt's documentation promises this product: what it does not promise is refused, and what contradicts
/// itself is an invalid value.
cublasStatus_t check_product(const cublasLtMatmulDescOpaque_t* op, const cublasLtMatrixLayoutOpaque_t* a,
                             const cublasLtMatrixLayoutOpaque_t* b, const cublasLtMatrixLayoutOpaque_t* c,
                             const cublasLtMatrixLayoutOpaque_t* d, Epilogue& epilogue);

}  // namespace mica::cuda_emulation
