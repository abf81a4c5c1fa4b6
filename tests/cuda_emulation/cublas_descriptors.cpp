// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's handle and descriptors: attributes are stored here and judged where they are used.
#include "cublas_descriptors.hpp"

#include <cstring>

#include "api.hpp"

using namespace mica::cuda_emulation;

namespace {

template <class T>
cublasStatus_t set(T& field, const void* buf, std::size_t bytes) {
  if (buf == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, buf, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t destroy(T* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* lightHandle) {
  static auto& api = Api::named("cublasLtCreate");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<cublasStatus_t>(ordered);
  if (device_count() == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
  *lightHandle = new cublasLtContext{current_device()};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle) { return destroy(lightHandle); }
std::size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
std::size_t cublasLtGetCudartVersion(void) { return CUDART_VERSION; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "CUBLAS_STATUS_UNKNOWN";
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "the function requires a feature absent from the device architecture";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality requested is not supported";
    default:
      return "an internal operation failed";
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* matLayout, cudaDataType type, std::uint64_t rows, std::uint64_t cols,
                                          std::int64_t ld) {
  *matLayout = new cublasLtMatrixLayoutOpaque_t;
  (*matLayout)->type = type;
  (*matLayout)->rows = rows;
  (*matLayout)->cols = cols;
  (*matLayout)->ld = ld;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout) { return destroy(matLayout); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matLayout, cublasLtMatrixLayoutAttribute_t attr, const void* buf,
                                                std::size_t sizeInBytes) {
  switch (attr) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return set(matLayout->type, buf, sizeInBytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return set(matLayout->order, buf, sizeInBytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return set(matLayout->rows, buf, sizeInBytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return set(matLayout->cols, buf, sizeInBytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return set(matLayout->ld, buf, sizeInBytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return set(matLayout->batch_count, buf, sizeInBytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return set(matLayout->batch_stride, buf, sizeInBytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmulDesc, cublasComputeType_t computeType, cudaDataType_t scaleType) {
  *matmulDesc = new cublasLtMatmulDescOpaque_t;
  (*matmulDesc)->compute_type = computeType;
  (*matmulDesc)->scale_type = scaleType;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc) { return destroy(matmulDesc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc, cublasLtMatmulDescAttributes_t attr, const void* buf,
                                              std::size_t sizeInBytes) {
  auto& it = *matmulDesc;
  switch (attr) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return set(it.compute_type, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return set(it.scale_type, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return set(it.pointer_mode, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(it.transa, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(it.transb, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_TRANSC:
      return set(it.transc, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(it.epilogue, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(it.bias, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      return set(it.bias_batch_stride, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(it.aux, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(it.aux_ld, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
      return set(it.aux_batch_stride, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      return set(it.sm_count_target, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return set(it.aux_type, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(it.bias_type, buf, sizeInBytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* pref) {
  *pref = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref) { return destroy(pref); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref, cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void* buf, std::size_t sizeInBytes) {
  switch (attr) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
      return set(pref->search_mode, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(pref->max_workspace_bytes, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(pref->reduction_schemes, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(pref->alignment_a, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(pref->alignment_b, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(pref->alignment_c, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(pref->alignment_d, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT:
      return set(pref->max_waves, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
      return set(pref->implementations, buf, sizeInBytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
