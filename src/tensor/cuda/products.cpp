// SPDX-License-Identifier: Apache-2.0
#include "products.hpp"

#include <array>
#include <optional>
#include <string_view>

#include "mica/core/error.hpp"
#include "mica/device/cuda/check.hpp"
#include "mica/tensor/philox.hpp"

namespace mica::cuda {

namespace {

cudaDataType_t library_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

/// NVIDIA's recommendation for each generation, but twice its 32 MiB for Hopper: split-K needs space for each part of the sum, and
/// the gradient of a [1600, 6400] weight, the largest of a 1.5B model, has 41 MB in f32.
std::int64_t most_workspace_bytes() {
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  return std::int64_t{major >= 9 ? 64 : 4} << 20;
}

template <class T>
void set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
}

cublasLtEpilogue_t library_epilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::gelu:
      return CUBLASLT_EPILOGUE_GELU;
    case Epilogue::gelu_bias:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case Epilogue::gelu_aux:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::gelu_aux_bias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::gelu_gradient:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

/// cuBLASLt's requirements for an epilogue's second matrix.
constexpr std::int64_t kAuxLdMultiple = 8;
constexpr int kAuxAlignment = 16;
bool takes_aux(const ProductSpec& spec) { return spec.ldc % kAuxLdMultiple == 0 && spec.alignment.aux >= kAuxAlignment; }

/// The product whose algorithm is used for this one, so that C's bits do not depend on whether the second matrix is requested.
std::optional<ProductSpec> bits_as(ProductSpec spec) {
  switch (spec.epilogue) {
    case Epilogue::gelu:
      spec.epilogue = Epilogue::gelu_aux;
      return spec;
    case Epilogue::gelu_bias:
      spec.epilogue = Epilogue::gelu_aux_bias;
      return spec;
    default:
      return std::nullopt;
  }
}

/// Preferences for the heuristic.
class Preference {
 public:
  Preference() { check(cublasLtMatmulPreferenceCreate(&handle_), "cublasLtMatmulPreferenceCreate"); }
  ~Preference() { static_cast<void>(cublasLtMatmulPreferenceDestroy(handle_)); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check(cublasLtMatmulPreferenceSetAttribute(handle_, attribute, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute");
  }
  [[nodiscard]] cublasLtMatmulPreference_t get() const { return handle_; }

 private:
  cublasLtMatmulPreference_t handle_ = nullptr;
};

}  // namespace

void check(cublasStatus_t status, const char* what, std::source_location where) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string_view path = where.file_name();
  throw CudaError(fmt::format("{}: {} ({}) at {}:{}", what, cublasLtGetStatusString(status), cublasLtGetStatusName(status),
                              path.substr(path.rfind('/') + 1), where.line()));
}

std::string ProductSpec::operands_text() const {
  const auto matrix = [](std::int64_t rows, std::int64_t cols, bool transposed) {
    return transposed ? fmt::format("[{},{}]^T", cols, rows) : fmt::format("[{},{}]", rows, cols);
  };
  return fmt::format("{} x {} {}", matrix(m, k, transposed_a), matrix(k, n, transposed_b), dtype_name(ab));
}

std::string ProductSpec::to_string() const {
  return fmt::format("{} -> {}{}{}, leading dims {}, {} and {}, alignments {}, {} and {}", operands_text(), accumulate ? "+= " : "",
                     dtype_name(c), epilogue_text(epilogue), lda, ldb, ldc, alignment.a, alignment.b, alignment.c);
}

void Product::run(const void* a, const void* b, void* c, const void* vector, const void* aux, void* workspace, cudaStream_t stream) const {
  if (has_vector(epilogue_)) set(descriptor_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
  if (has_aux(epilogue_)) set(descriptor_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
  const float alpha = 1;
  const float beta = accumulate_ ? 1 : 0;
  // cuBLASLt is column-major: it sees every matrix transposed, and C^T = B^T A^T.
  check(cublasLtMatmul(library_, descriptor_.get(), &alpha, b, b_.get(), a, a_.get(), &beta, c, c_.get(), c, c_.get(), &algorithm_,
                       workspace, static_cast<std::size_t>(workspace_bytes_), stream),
        "cublasLtMatmul");
}

Products::Products(const CudaKernelsOptions& options)
    : allow_tf32_(options.allow_tf32), reproducible_(options.reproducible), most_workspace_bytes_(most_workspace_bytes()) {
  check(cublasLtCreate(library_.put()), "cublasLtCreate");
}

Products::~Products() = default;

std::string Products::library_description() {
  const std::size_t version = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string Products::why_not(const ProductSpec& spec) {
  if (has_aux(spec.epilogue) && spec.ldc % kAuxLdMultiple != 0) {
    return fmt::format("{} fuses a GELU only if the width is a multiple of {}; it is {}", library_description(), kAuxLdMultiple, spec.ldc);
  }
  if (has_aux(spec.epilogue) && spec.alignment.aux < kAuxAlignment) {
    return fmt::format("{} fuses a GELU only if the GELU's input is aligned to {} bytes", library_description(), kAuxAlignment);
  }
  return fmt::format("{} has no algorithm for {}", library_description(), spec.to_string());
}

const Product* Products::find(const ProductSpec& spec) {
  const auto found = cache_.find(spec);
  if (found != cache_.end()) return found->second.get();
  return cache_.emplace(spec, make(spec)).first->second.get();
}

std::unique_ptr<Product> Products::make(const ProductSpec& spec) {
  if (has_aux(spec.epilogue) && !takes_aux(spec)) return nullptr;
  std::unique_ptr<Product> product = describe(spec);
  const std::optional<ProductSpec> other = bits_as(spec);
  if (!other) return choose_algorithm(spec, *product) ? std::move(product) : nullptr;
  const Product* same_bits = find(*other);
  return same_bits && take_algorithm_of(*same_bits, *product) ? std::move(product) : nullptr;
}

std::unique_ptr<Product> Products::describe(const ProductSpec& spec) const {
  auto product = std::make_unique<Product>();
  product->library_ = library_.get();
  product->accumulate_ = spec.accumulate;
  product->epilogue_ = spec.epilogue;

  const cublasComputeType_t compute = spec.ab == DType::f32 && allow_tf32_ ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(cublasLtMatmulDescCreate(product->descriptor_.put(), compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
  cublasLtMatmulDesc_t descriptor = product->descriptor_.get();
  set(descriptor, CUBLASLT_MATMUL_DESC_TRANSA, spec.transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(descriptor, CUBLASLT_MATMUL_DESC_TRANSB, spec.transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (spec.epilogue != Epilogue::none) {
    set(descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE, library_epilogue(spec.epilogue));
  }
  // Until run() has the addresses of the vector and the second matrix, others of the same alignment are set.
  if (has_vector(spec.epilogue)) {
    set(descriptor, CUBLASLT_MATMUL_DESC_BIAS_POINTER, std::intptr_t{spec.alignment.vector});
    set(descriptor, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(library_type(spec.c)));
  }
  if (has_aux(spec.epilogue)) {
    set(descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, std::intptr_t{kAuxAlignment});
    set(descriptor, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, spec.ldc);
  }

  const auto layout = [](cublasLtMatrixLayout_t* out, DType dtype, std::int64_t cols, std::int64_t rows, std::int64_t ld) {
    check(cublasLtMatrixLayoutCreate(out, library_type(dtype), static_cast<std::uint64_t>(cols), static_cast<std::uint64_t>(rows), ld),
          "cublasLtMatrixLayoutCreate");
  };
  layout(product->a_.put(), spec.ab, spec.transposed_a ? spec.m : spec.k, spec.transposed_a ? spec.k : spec.m, spec.lda);
  layout(product->b_.put(), spec.ab, spec.transposed_b ? spec.k : spec.n, spec.transposed_b ? spec.n : spec.k, spec.ldb);
  layout(product->c_.put(), spec.c, spec.n, spec.m, spec.ldc);
  return product;
}

bool Products::choose_algorithm(const ProductSpec& spec, Product& product) const {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(most_workspace_bytes_));
  // Partial sums must be f32 or better, so not in C's dtype unless that is f32. Adding them into C needs no space, but there the order
  // is not documented to be the same every time.
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (spec.c == DType::f32 && !reproducible_) reductions |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  // cuBLASLt's A is our B.
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(spec.alignment.b));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(spec.alignment.a));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(spec.alignment.c));
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(spec.alignment.c));
  std::array<cublasLtMatmulHeuristicResult_t, 8> results{};
  int num_results = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library_.get(), product.descriptor_.get(), product.b_.get(), product.a_.get(), product.c_.get(),
                                     product.c_.get(), preference.get(), static_cast<int>(results.size()), results.data(), &num_results);
  // It is not documented which of the two means that these dtypes are not supported with this epilogue.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return false;
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; i < num_results; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<std::size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    product.algorithm_ = result.algo;
    product.workspace_bytes_ = static_cast<std::int64_t>(result.workspaceSize);
    return true;
  }
  return false;
}

bool Products::take_algorithm_of(const Product& other, Product& product) const {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(library_.get(), product.descriptor_.get(), product.b_.get(), product.a_.get(),
                                                        product.c_.get(), product.c_.get(), &other.algorithm_, &result);
  if (status != CUBLAS_STATUS_SUCCESS || static_cast<std::int64_t>(result.workspaceSize) > most_workspace_bytes_) return false;
  product.algorithm_ = other.algorithm_;
  product.workspace_bytes_ = static_cast<std::int64_t>(result.workspaceSize);
  return true;
}

std::size_t Products::Hash::operator()(const ProductSpec& spec) const noexcept {
  std::uint64_t hash = 0;
  const auto mix = [&hash](std::int64_t value) { hash = mix64(hash ^ static_cast<std::uint64_t>(value)); };
  for (const std::int64_t value : {spec.m, spec.n, spec.k, spec.lda, spec.ldb, spec.ldc}) mix(value);
  mix(spec.transposed_a * 2 + spec.transposed_b);
  mix(static_cast<std::int64_t>(spec.ab) * 256 + static_cast<std::int64_t>(spec.c));
  mix(static_cast<std::int64_t>(spec.epilogue) * 2 + spec.accumulate);
  const Alignments& at = spec.alignment;
  mix((((at.a * 32 + at.b) * 32 + at.c) * 32 + at.vector) * 32 + at.aux);
  return static_cast<std::size_t>(hash);
}

}  // namespace mica::cuda
