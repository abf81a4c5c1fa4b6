// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "mica/core/dtype.hpp"
#include "mica/tensor/products_made.hpp"

namespace mica::cpu {

/// C[m,n] (+)= A[m,k] B[k,n] (+ bias[n]), all row-major. A transposed operand is stored as [k,m] (A) or [n,k] (B).
struct ProductSpec {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;  // elements between two stored rows
  bool transposed_a = false, transposed_b = false;
  DType a = DType::f32, b = DType::f32, c = DType::f32;
  std::optional<DType> bias = std::nullopt;
  bool accumulate = false;

  friend bool operator==(const ProductSpec&, const ProductSpec&) = default;
  /// "[1024,768] bf16 x [768,2304]^T bf16 + bias bf16 -> += f32"
  [[nodiscard]] std::string to_string() const;
};

/// A product ready to run, for the OpenMP thread count that was set when it was made.
class Product {
 public:
  virtual ~Product() = default;
  /// Scratch that run() needs, to be taken from the pool; 64-byte aligned.
  [[nodiscard]] virtual std::int64_t scratch_bytes() const = 0;
  /// On a stream's thread. Two streams may run the same product: the second waits.
  virtual void run(const void* a, const void* b, const void* bias, void* c, void* scratch) const = 0;
};

/// Makes products and keeps those used last: oneDNN needs a quarter of a millisecond to create one, and less than a tenth of that to
/// run a small one. [Note: product cache] Keyed by the whole spec and the thread count. A run has a few dozen shapes, but a generation
/// some for each length of a prompt. find() belongs to the host thread; who runs a product later keeps it.
class Products {
 public:
  /// @param native_bf16  whether bf16 products run natively; otherwise they are computed in f32.
  explicit Products(bool native_bf16);
  ~Products();
  [[nodiscard]] std::shared_ptr<const Product> find(const ProductSpec& spec);
  [[nodiscard]] bool native_bf16() const { return native_bf16_; }
  [[nodiscard]] ProductsMade made() const { return made_; }
  /// Whether oneDNN multiplies bf16 with instructions of this processor.
  [[nodiscard]] static bool processor_has_bf16();
  /// "oneDNN 2.6.3, avx512_core_bf16"
  [[nodiscard]] static std::string library_description();

 private:
  struct Key {
    ProductSpec spec;
    int threads;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  struct Library;

  std::unique_ptr<Product> make(const ProductSpec& spec);

  bool native_bf16_;
  std::unique_ptr<Library> library_;
  struct Kept {
    std::shared_ptr<const Product> product;
    std::int64_t last_use = 0;
  };
  static constexpr std::size_t kMostKept = 1024;  // as many as oneDNN's own cache
  std::unordered_map<Key, Kept, KeyHash> cache_;
  std::int64_t num_uses_ = 0;
  ProductsMade made_;
};

}  // namespace mica::cpu
