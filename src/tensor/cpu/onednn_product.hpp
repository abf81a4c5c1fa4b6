// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>

#include <dnnl.hpp>

#include "products.hpp"

namespace mica::cpu {

/// Whether oneDNN uses all of these instructions here: the processor and the system have them, and ONEDNN_MAX_CPU_ISA does not leave them
/// out.
[[nodiscard]] bool onednn_uses(dnnl::cpu_isa isa);

/// Whether oneDNN 2 reads the operands of a product of f32 where they are, as with AVX2 where copies of them would take as long as the
/// product of few rows or columns. Its source: src/cpu/x64/gemm/gemm_driver.cpp.
[[nodiscard]] bool onednn_reads_in_place(const ProductSpec& spec);

/// Whether oneDNN 2 multiplies parts of dense matrices faster than whole ones here. [Note: dense operands]
[[nodiscard]] bool onednn_prefers_parts();

/// Whether oneDNN's matmul has a fast implementation of these dtypes (bf16: given the instructions).
[[nodiscard]] bool onednn_supports(const ProductSpec& spec, bool native_bf16);

/// One matmul primitive with its memory objects, made once; a run only sets their addresses.
class OnednnProduct final : public Product {
 public:
  OnednnProduct(const dnnl::engine& engine, const dnnl::stream& stream, const ProductSpec& spec);
  [[nodiscard]] std::int64_t scratch_bytes() const override { return scratch_bytes_; }
  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) const override;

 private:
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  std::int64_t scratch_bytes_ = 0;
  mutable std::mutex mutex_;  // of the memory objects' addresses
  mutable dnnl::memory a_, b_, bias_, c_, scratch_;
};

}  // namespace mica::cpu
