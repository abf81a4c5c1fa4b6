// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <cublasLt.h>

struct cublasLtContext {
  int device = 0;
};

struct cublasLtMatrixLayoutOpaque_t {
  std::uint32_t type = CUDA_R_32F;
  std::int32_t order = CUBLASLT_ORDER_COL;
  std::uint64_t rows = 0, cols = 0;
  std::int64_t ld = 0;
  std::int32_t batch_count = 1;
  std::int64_t batch_stride = 0;
};

struct cublasLtMatmulDescOpaque_t {
  std::int32_t compute_type = CUBLAS_COMPUTE_32F, scale_type = CUDA_R_32F;
  std::int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  std::int32_t transa = CUBLAS_OP_N, transb = CUBLAS_OP_N, transc = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  std::int64_t bias_batch_stride = 0;
  std::int32_t bias_type = -1;  ///< -1: D's
  void* aux = nullptr;
  std::int64_t aux_ld = 0, aux_batch_stride = 0;
  std::int32_t aux_type = -1;
  std::int32_t sm_count_target = 0;
};

struct cublasLtMatmulPreferenceOpaque_t {
  std::uint32_t search_mode = 0;
  std::uint64_t max_workspace_bytes = 0;
  std::uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
  float max_waves = 0;
  std::uint64_t implementations = ~std::uint64_t{0};
};
