// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <unordered_map>

#include <cublasLt.h>

#include "mica/core/unique_handle.hpp"
#include "mica/tensor/cuda_kernels.hpp"

#include "product_spec.hpp"

namespace mica::cuda {

/// @throws CudaError "cublasLtMatmul: an unsupported value (CUBLAS_STATUS_INVALID_VALUE) at products.cpp:12"
void check(cublasStatus_t status, const char* what, std::source_location where = std::source_location::current());

/// A product ready to run.
class Product {
 public:
  /// Scratch that run() needs, aligned to 256 bytes.
  [[nodiscard]] std::int64_t workspace_bytes() const { return workspace_bytes_; }
  /// Enqueues the product. `vector` and `aux`: for the epilogue.
  void run(const void* a, const void* b, void* c, const void* vector, const void* aux, void* workspace, cudaStream_t stream) const;

 private:
  friend class Products;
  struct DescriptorTraits {
    using type = cublasLtMatmulDesc_t;
    static type null() { return nullptr; }
    static void close(type handle) noexcept { static_cast<void>(cublasLtMatmulDescDestroy(handle)); }
  };
  struct LayoutTraits {
    using type = cublasLtMatrixLayout_t;
    static type null() { return nullptr; }
    static void close(type handle) noexcept { static_cast<void>(cublasLtMatrixLayoutDestroy(handle)); }
  };

  cublasLtHandle_t library_ = nullptr;
  UniqueHandle<DescriptorTraits> descriptor_;
  UniqueHandle<LayoutTraits> a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_{};
  std::int64_t workspace_bytes_ = 0;
  bool accumulate_ = false;
  Epilogue epilogue_ = Epilogue::none;
};

/// Finds cuBLASLt's algorithms and caches them, since its heuristic takes longer than a small product. The key is the whole spec;
/// nothing is ever removed, since a run has a few dozen shapes. Used by the host thread only.
class Products {
 public:
  /// For the calling thread's GPU.
  explicit Products(const CudaKernelsOptions& options);
  ~Products();
  /// Null if cuBLASLt has no kernel for this dtype, alignment or epilogue.
  [[nodiscard]] const Product* find(const ProductSpec& spec);
  /// Why find(spec) is null.
  [[nodiscard]] static std::string why_not(const ProductSpec& spec);
  /// "cuBLASLt 13.1.0"
  [[nodiscard]] static std::string library_description();

 private:
  struct Hash {
    std::size_t operator()(const ProductSpec& spec) const noexcept;
  };
  struct LibraryTraits {
    using type = cublasLtHandle_t;
    static type null() { return nullptr; }
    static void close(type handle) noexcept { static_cast<void>(cublasLtDestroy(handle)); }
  };

  std::unique_ptr<Product> make(const ProductSpec& spec);
  std::unique_ptr<Product> describe(const ProductSpec& spec) const;
  bool choose_algorithm(const ProductSpec& spec, Product& product) const;
  bool take_algorithm_of(const Product& other, Product& product) const;

  bool allow_tf32_, reproducible_;
  std::int64_t most_workspace_bytes_ = 0;
  UniqueHandle<LibraryTraits> library_;
  std::unordered_map<ProductSpec, std::unique_ptr<Product>, Hash> cache_;
};

}  // namespace mica::cuda
