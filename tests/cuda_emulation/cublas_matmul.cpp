// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's algorithms and products.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "api.hpp"
#include "cublas_checks.hpp"
#include "cublas_product.hpp"
#include "cuda_emulation.hpp"
#include "memory.hpp"
#include "streams.hpp"

using namespace mica::cuda_emulation;

namespace {

using Layout = cublasLtMatrixLayoutOpaque_t;
using Operation = cublasLtMatmulDescOpaque_t;

std::atomic<std::uint32_t> last_allowed_reductions = 0;

constexpr std::uint64_t kAlgorithm = 0x4d494341;

/// What an algorithm's words say.
enum Word { kId, kWorkspaceBytes, kAlignmentA, kAlignmentB, kAlignmentC, kAlignmentD };

/// A product with a long sum asks for room, as one that splits the sum does.
std::uint64_t wanted_workspace(const Operation& op, const Layout& a, const Layout& d) {
  const std::uint64_t k = op.transa == CUBLAS_OP_N ? a.cols : a.rows;
  return k >= 2 * d.rows || k >= 2 * d.cols ? d.rows * d.cols * sizeof(float) : 0;
}

/// All bytes of a matrix, or of an epilogue's vector, are memory of the device; `alignment` divides their address.
cublasStatus_t check_memory(const char* what, const void* data, std::uint64_t bytes, std::uint64_t alignment) {
  const auto found = Memory::instance().find(data, bytes);
  if (found.place == Place::pageable || !found.whole) {
    std::fprintf(stderr, "CUDA emulation: cublasLtMatmul: %s: %llu bytes at %p are not all memory of the GPU\n", what,
                 static_cast<unsigned long long>(bytes), data);
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  return reinterpret_cast<std::uintptr_t>(data) % alignment == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

std::uint64_t extent_bytes(const Layout& it) {
  const bool by_col = it.order == CUBLASLT_ORDER_COL;
  const std::uint64_t lines = by_col ? it.cols : it.rows;
  const std::uint64_t elements = (lines - 1) * static_cast<std::uint64_t>(it.ld) + (by_col ? it.rows : it.cols);
  return (static_cast<std::uint64_t>((it.batch_count - 1) * it.batch_stride) + elements) * element_bytes(it.type);
}

bool overlap(const void* a, std::uint64_t a_bytes, const void* b, std::uint64_t b_bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(a), second = reinterpret_cast<std::uintptr_t>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

struct Operands {
  const void *a, *b, *c;
  void *d, *workspace;
  const Layout &a_layout, &b_layout, &c_layout, &d_layout;
  bool reads_c;
};

/// All that a product touches is there, aligned as the algorithm expects, and apart from the result.
cublasStatus_t check_operands(const Operation& op, const Epilogue& epilogue, const cublasLtMatmulAlgo_t* algo, const Operands& x) {
  const std::uint64_t vector_bytes = x.d_layout.rows * element_bytes(x.d_layout.type);
  const std::uint64_t aux_bytes =
      ((x.d_layout.cols - 1) * static_cast<std::uint64_t>(op.aux_ld) + x.d_layout.rows) * element_bytes(x.d_layout.type);
  const auto alignment = [&](Word word, const Layout& layout) { return algo != nullptr ? algo->data[word] : element_bytes(layout.type); };
  const std::uint64_t workspace_bytes = algo != nullptr ? algo->data[kWorkspaceBytes] : 0;
  struct Part {
    bool used;
    const char* name;
    const void* data;
    std::uint64_t bytes, alignment;
  };
  const Part parts[] = {
      {true, "A", x.a, extent_bytes(x.a_layout), alignment(kAlignmentA, x.a_layout)},
      {true, "B", x.b, extent_bytes(x.b_layout), alignment(kAlignmentB, x.b_layout)},
      {x.reads_c, "C", x.c, extent_bytes(x.c_layout), alignment(kAlignmentC, x.c_layout)},
      {true, "D", x.d, extent_bytes(x.d_layout), alignment(kAlignmentD, x.d_layout)},
      {epilogue.bias, "bias", op.bias, vector_bytes, element_bytes(x.d_layout.type)},
      {epilogue.has_aux(), "aux", op.aux, aux_bytes, element_bytes(x.d_layout.type)},
      {workspace_bytes > 0, "workspace", x.workspace, workspace_bytes, 16},
  };
  for (const auto& part : parts) {
    if (!part.used) continue;
    const auto status = check_memory(part.name, part.data, part.bytes, part.alignment);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const bool is_result = part.name[0] == 'D' || (part.name[0] == 'C' && x.c == x.d);
    if (is_result || !overlap(part.data, part.bytes, x.d, extent_bytes(x.d_layout))) continue;
    std::fprintf(stderr, "CUDA emulation: cublasLtMatmul: %s overlaps D\n", part.name);
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

constexpr float kGeluScale = 0.7978845608F, kGeluCube = 0.044715F;  // sqrt(2 / pi)
float gelu(float x) { return 0.5F * x * (1.0F + std::tanh(kGeluScale * (x + kGeluCube * x * x * x))); }
float gelu_gradient(float x) {
  const float t = std::tanh(kGeluScale * (x + kGeluCube * x * x * x));
  return 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * kGeluScale * (1.0F + 3.0F * kGeluCube * x * x);
}

void finish(const Operation& op, const Epilogue& epilogue, float alpha, float beta, const std::vector<float>& product, const Matrix& c,
            Matrix& d, std::uint32_t type, std::int64_t batch) {
  const auto bias_at = [&](std::int64_t i) { return batch * op.bias_batch_stride + i; };
  const auto aux_at = [&](std::int64_t i, std::int64_t j) { return batch * op.aux_batch_stride + j * op.aux_ld + i; };
  for (std::int64_t i = 0; i < d.rows(); ++i) {
    for (std::int64_t j = 0; j < d.cols(); ++j) {
      float value = alpha * product[static_cast<std::size_t>(j * d.rows() + i)];
      if (beta != 0) value += beta * c.at(i, j);
      if (epilogue.bias) value += load(op.bias, type, bias_at(i));
      if (epilogue.aux_out) store(op.aux, type, aux_at(i, j), value);
      if (epilogue.gelu) value = gelu(value);
      if (epilogue.gelu_gradient) value *= gelu_gradient(load(op.aux, type, aux_at(i, j)));
      d.set(i, j, value);
    }
  }
}

}  // namespace

std::uint32_t mica::cuda_emulation::allowed_reductions() { return last_allowed_reductions; }

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc,
                                              cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc,
                                              cublasLtMatrixLayout_t Ddesc, cublasLtMatmulPreference_t preference, int requestedAlgoCount,
                                              cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int* returnAlgoCount) {
  static auto& api = Api::named("cublasLtMatmulAlgoGetHeuristic");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<cublasStatus_t>(ordered);
  if (lightHandle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (preference == nullptr || requestedAlgoCount < 1) return CUBLAS_STATUS_INVALID_VALUE;
  *returnAlgoCount = 0;
  Epilogue epilogue;
  if (const auto status = check_product(operationDesc, Adesc, Bdesc, Cdesc, Ddesc, epilogue); status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  for (const auto& [layout, alignment] : {std::pair(Adesc, preference->alignment_a),
                                          {Bdesc, preference->alignment_b},
                                          {Cdesc, preference->alignment_c},
                                          {Ddesc, preference->alignment_d}}) {
    if (alignment < element_bytes(layout->type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  last_allowed_reductions = preference->reduction_schemes;
  cublasLtMatmulHeuristicResult_t result{};
  const std::uint64_t workspace = wanted_workspace(*operationDesc, *Adesc, *Ddesc);
  const bool may_split = (preference->reduction_schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0;
  result.workspaceSize = may_split && workspace <= preference->max_workspace_bytes ? workspace : 0;
  result.algo.data[kId] = kAlgorithm;
  result.algo.data[kWorkspaceBytes] = result.workspaceSize;
  result.algo.data[kAlignmentA] = preference->alignment_a;
  result.algo.data[kAlignmentB] = preference->alignment_b;
  result.algo.data[kAlignmentC] = preference->alignment_c;
  result.algo.data[kAlignmentD] = preference->alignment_d;
  result.wavesCount = 1.0F;
  heuristicResultsArray[0] = result;
  *returnAlgoCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc, cublasLtMatrixLayout_t Adesc,
                                       cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  static auto& api = Api::named("cublasLtMatmulAlgoCheck");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<cublasStatus_t>(ordered);
  if (lightHandle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (algo == nullptr || result == nullptr || algo->data[kId] != kAlgorithm) return CUBLAS_STATUS_INVALID_VALUE;
  Epilogue epilogue;
  const auto status = check_product(operationDesc, Adesc, Bdesc, Cdesc, Ddesc, epilogue);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  result->workspaceSize = algo->data[kWorkspaceBytes];
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1.0F;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc, const void* alpha, const void* A,
                              cublasLtMatrixLayout_t Adesc, const void* B, cublasLtMatrixLayout_t Bdesc, const void* beta, const void* C,
                              cublasLtMatrixLayout_t Cdesc, void* D, cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, std::size_t workspaceSizeInBytes, cudaStream_t stream) {
  static auto& api = Api::named("cublasLtMatmul");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<cublasStatus_t>(ordered);
  if (lightHandle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (in_host_function()) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (alpha == nullptr || beta == nullptr || !is_stream(stream) || device_of(stream) != lightHandle->device) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  Epilogue epilogue;
  if (const auto status = check_product(computeDesc, Adesc, Bdesc, Cdesc, Ddesc, epilogue); status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  const Operation& op = *computeDesc;
  const float scale = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  if (algo != nullptr && (algo->data[kId] != kAlgorithm || workspaceSizeInBytes < algo->data[kWorkspaceBytes])) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (C == D && (Cdesc->ld != Ddesc->ld || Cdesc->batch_stride != Ddesc->batch_stride)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }

  const Operands operands{A, B, C, D, workspace, *Adesc, *Bdesc, *Cdesc, *Ddesc, kept != 0};
  if (const auto status = check_operands(op, epilogue, algo, operands); status != CUBLAS_STATUS_SUCCESS) return status;
  // All by value: descriptions, factors and the algorithm are the host's, and may be gone when the product is made.
  enqueue_action(stream, [=, op = op, a_layout = *Adesc, b_layout = *Bdesc, c_layout = *Cdesc, d_layout = *Ddesc,
                          workspace_bytes = algo != nullptr ? algo->data[kWorkspaceBytes] : 0] {
    const DeviceWork work;
    if (workspace_bytes > 0) std::memset(workspace, 0xff, workspace_bytes);
    for (std::int64_t batch = 0; batch < d_layout.batch_count; ++batch) {
      const Matrix a(A, a_layout, op.transa, batch), b(B, b_layout, op.transb, batch), c(C, c_layout, CUBLAS_OP_N, batch);
      Matrix d(D, d_layout, CUBLAS_OP_N, batch);
      const auto product = multiply(a, b, op.compute_type == CUBLAS_COMPUTE_32F_FAST_TF32);
      finish(op, epilogue, scale, kept, product, c, d, d_layout.type, batch);
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}
