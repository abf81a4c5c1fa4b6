// SPDX-License-Identifier: Apache-2.0
#include "cublas_checks.hpp"

#include "cublas_product.hpp"

namespace mica::cuda_emulation {

namespace {

using Layout = cublasLtMatrixLayoutOpaque_t;
using Operation = cublasLtMatmulDescOpaque_t;

constexpr std::int64_t kAuxLdMultiple = 8;
constexpr std::uintptr_t kAuxAlignment = 16;

bool find_epilogue(std::uint32_t which, Epilogue& out) {
  switch (which) {
    case CUBLASLT_EPILOGUE_DEFAULT:
      return true;
    case CUBLASLT_EPILOGUE_BIAS:
      out.bias = true;
      return true;
    case CUBLASLT_EPILOGUE_GELU:
      out.gelu = true;
      return true;
    case CUBLASLT_EPILOGUE_GELU_BIAS:
      out.gelu = out.bias = true;
      return true;
    case CUBLASLT_EPILOGUE_GELU_AUX:
      out.gelu = out.aux_out = true;
      return true;
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      out.gelu = out.aux_out = out.bias = true;
      return true;
    case CUBLASLT_EPILOGUE_DGELU:
      out.gelu_gradient = true;
      return true;
    default:
      return false;
  }
}

bool is_half(std::uint32_t type) { return type == CUDA_R_16BF || type == CUDA_R_16F; }

bool has_room(const Layout& it) {
  const auto inner = static_cast<std::int64_t>(it.order == CUBLASLT_ORDER_COL ? it.rows : it.cols);
  return it.rows > 0 && it.cols > 0 && it.ld >= inner && it.batch_count >= 1;
}

cublasStatus_t check_types(const Operation& op, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const bool computes = op.compute_type == CUBLAS_COMPUTE_32F || op.compute_type == CUBLAS_COMPUTE_32F_PEDANTIC ||
                        (op.compute_type == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type == CUDA_R_32F);
  const bool factors = a.type == b.type && (is_half(a.type) || a.type == CUDA_R_32F);
  const bool results = c.type == d.type && (c.type == a.type || c.type == CUDA_R_32F);
  if (!computes || !factors || !results || op.scale_type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  return op.pointer_mode == CUBLASLT_POINTER_MODE_HOST && op.transc == CUBLAS_OP_N ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t check_epilogue(const Operation& op, const Layout& d, Epilogue& epilogue) {
  if (!find_epilogue(op.epilogue, epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (op.epilogue != CUBLASLT_EPILOGUE_DEFAULT && d.order != CUBLASLT_ORDER_COL) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (epilogue.bias) {
    if (op.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    if (op.bias_type != -1 && op.bias_type != static_cast<std::int32_t>(d.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (epilogue.has_aux()) {
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(op.aux) % kAuxAlignment == 0;
    if (op.aux == nullptr || !is_aligned || op.aux_ld % kAuxLdMultiple != 0 || op.aux_ld < static_cast<std::int64_t>(d.rows) ||
        op.aux_batch_stride % kAuxLdMultiple != 0) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (op.aux_type != -1 && op.aux_type != static_cast<std::int32_t>(d.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

std::uint64_t element_bytes(std::uint32_t type) { return is_half(type) ? 2 : 4; }

cublasStatus_t check_product(const Operation* op, const Layout* a, const Layout* b, const Layout* c, const Layout* d, Epilogue& epilogue) {
  if (op == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  for (const auto* it : {a, b, c, d}) {
    if (!has_room(*it) || it->batch_count != d->batch_count) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Matrix left(nullptr, *a, op->transa, 0), right(nullptr, *b, op->transb, 0), out(nullptr, *d, CUBLAS_OP_N, 0);
  if (left.cols() != right.rows() || left.rows() != out.rows() || right.cols() != out.cols() || c->rows != d->rows || c->cols != d->cols ||
      c->order != d->order) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (const auto status = check_types(*op, *a, *b, *c, *d); status != CUBLAS_STATUS_SUCCESS) return status;
  return check_epilogue(*op, *d, epilogue);
}

}  // namespace mica::cuda_emulation
