// SPDX-License-Identifier: Apache-2.0
#include "products.hpp"

#include <algorithm>
#include <chrono>
#include <functional>

#include <dnnl.hpp>
#include <omp.h>

#include "mica/core/error.hpp"

#include "converted_product.hpp"
#include "deep_product.hpp"
#include "dense_parts.hpp"
#include "onednn_product.hpp"
#include "respaced_product.hpp"
#include "rounded_product.hpp"
#include "sliced_product.hpp"
#include "thin_product.hpp"
#include "transposing_product.hpp"

namespace mica::cpu {

struct Products::Library {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

Products::Products(bool native_bf16) : native_bf16_(native_bf16), library_(std::make_unique<Library>()) {}
Products::~Products() = default;

std::shared_ptr<const Product> Products::find(const ProductSpec& spec) {
  const Key key{spec, omp_get_max_threads()};
  if (const auto found = cache_.find(key); found != cache_.end()) {
    found->second.last_use = ++num_uses_;
    return found->second.product;
  }
  std::shared_ptr<const Product> product = make(spec);  // may itself add products to the cache
  if (cache_.size() >= kMostKept) cache_.erase(std::ranges::min_element(cache_, {}, [](const auto& each) { return each.second.last_use; }));
  cache_.emplace(key, Kept{product, ++num_uses_});
  return product;
}

std::unique_ptr<Product> Products::make(const ProductSpec& spec) {
  if (ThinProduct::suits(spec)) return std::make_unique<ThinProduct>(spec);
  if (!onednn_supports(spec, native_bf16_)) return std::make_unique<ConvertedProduct>(spec, *this);
  if (RespacedProduct::suits(spec)) return std::make_unique<RespacedProduct>(spec, *this);
  if (SlicedProduct::suits(spec)) return std::make_unique<SlicedProduct>(spec, *this);
  if (TransposingProduct::suits(spec)) return std::make_unique<TransposingProduct>(spec, *this);
  if (onednn_prefers_parts()) {
    if (auto product = make_of_dense_parts(spec, faster_parts(spec), *this)) return product;
  }
  const auto begin = std::chrono::steady_clock::now();
  auto product = std::make_unique<OnednnProduct>(library_->engine, library_->stream, spec);
  made_.ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  ++made_.num;
  if (RoundedProduct::suits(spec, product->scratch_bytes())) return std::make_unique<RoundedProduct>(spec, *this);
  if (DeepProduct::suits(spec, product->scratch_bytes())) return std::make_unique<DeepProduct>(spec, *this);
  return product;
}

std::size_t Products::KeyHash::operator()(const Key& key) const noexcept {
  const ProductSpec& s = key.spec;
  std::uint64_t h = 0x9E3779B97F4A7C15ULL;
  for (const std::int64_t value : {s.m, s.n, s.k, s.lda, s.ldb, s.ldc, static_cast<std::int64_t>(key.threads)}) {
    h = (h ^ static_cast<std::uint64_t>(value)) * 0xBF58476D1CE4E5B9ULL;
    h ^= h >> 29;
  }
  const auto flags = static_cast<unsigned>(s.transposed_a) | static_cast<unsigned>(s.transposed_b) << 1U |
                     static_cast<unsigned>(s.accumulate) << 2U | static_cast<unsigned>(s.a) << 4U | static_cast<unsigned>(s.b) << 8U |
                     static_cast<unsigned>(s.c) << 12U | static_cast<unsigned>(s.bias ? static_cast<unsigned>(*s.bias) + 1 : 0) << 16U;
  return (h ^ flags) * 0x94D049BB133111EBULL;
}

std::string ProductSpec::to_string() const {
  const auto operand = [](std::int64_t rows, std::int64_t cols, bool transposed, DType dtype) {
    return transposed ? fmt::format("[{},{}]^T {}", cols, rows, dtype_name(dtype))
                      : fmt::format("[{},{}] {}", rows, cols, dtype_name(dtype));
  };
  return fmt::format("{} x {}{} -> {}{}", operand(m, k, transposed_a, a), operand(k, n, transposed_b, b),
                     bias ? fmt::format(" + bias {}", dtype_name(*bias)) : "", accumulate ? "+= " : "", dtype_name(c));
}

bool Products::processor_has_bf16() { return onednn_uses(dnnl::cpu_isa::avx512_core_bf16); }

std::string Products::library_description() {
  const auto name = [](dnnl::cpu_isa isa) -> const char* {
    switch (isa) {
      case dnnl::cpu_isa::sse41:
        return "sse41";
      case dnnl::cpu_isa::avx:
        return "avx";
      case dnnl::cpu_isa::avx2:
        return "avx2";
      case dnnl::cpu_isa::avx2_vnni:
        return "avx2_vnni";
      case dnnl::cpu_isa::avx512_core:
        return "avx512_core";
      case dnnl::cpu_isa::avx512_core_vnni:
        return "avx512_core_vnni";
      case dnnl::cpu_isa::avx512_core_bf16:
        return "avx512_core_bf16";
      case dnnl::cpu_isa::avx512_core_amx:
        return "avx512_core_amx";
      default:
        return "another instruction set";  // oneDNN 3 has more of them
    }
  };
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}, {}", version->major, version->minor, version->patch, name(dnnl::get_effective_cpu_isa()));
}

}  // namespace mica::cpu
