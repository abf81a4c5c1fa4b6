// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mica/tensor/kernels.hpp"

#include "../product_arguments.hpp"
#include "products.hpp"

namespace mica::cpu {

/// The classifier head and its cross-entropy as one operation. [Note: head loss]
/// The rows are cut into chunks whose logits are at most `logits_bytes`, but into no more than 16; a small vocabulary needs one chunk.
/// A chunk: logits = hidden w^T (f32) -> each row's loss and, in place, dlogits -> dhidden and dw by products.
/// bf16 and f16: dlogits are in that dtype, in the first half of each f32 row, so the row stride stays the same. dw is rounded
/// to its dtype once per chunk ([Note: roundings of dw]); all else is f32.
class HeadLoss {
 public:
  /// @param tensors  checked, with at least one row
  HeadLoss(Products& products, const arguments::HeadTensors& tensors, double scale, Write dw_mode, std::int64_t logits_bytes);

  [[nodiscard]] std::int64_t scratch_bytes() const { return scratch_bytes_; }
  /// The products that run() will compute.
  [[nodiscard]] std::vector<ProductSpec> product_specs() const;
  /// On the stream's thread. @throws Error naming the first target that is not -1 and not below V.
  void run(void* scratch) const;

 private:
  struct ChunkProducts {
    std::shared_ptr<const Product> logits;
    std::shared_ptr<const Product> dhidden;  // null: not wanted
    std::shared_ptr<const Product> dw;
  };
  [[nodiscard]] std::int64_t num_chunks() const;
  [[nodiscard]] std::int64_t chunk_rows(std::int64_t chunk) const;
  [[nodiscard]] bool is_accumulating(std::int64_t chunk) const { return accumulate_dw_ || chunk > 0; }
  [[nodiscard]] ProductSpec logits_spec(std::int64_t rows) const;
  [[nodiscard]] ProductSpec dhidden_spec(std::int64_t rows) const;
  [[nodiscard]] ProductSpec dw_spec(std::int64_t rows, bool accumulate) const;
  [[nodiscard]] ChunkProducts find(Products& products, std::int64_t chunk) const;
  void run_chunk(std::int64_t first_row, std::int64_t rows, const ChunkProducts& products, std::byte* scratch) const;

  arguments::HeadTensors t_;
  double scale_;
  bool accumulate_dw_;
  std::int64_t rows_, width_, vocab_;    // M, C, V
  std::int64_t chunk_ = 0, stride_ = 0;  // rows of a chunk; f32 elements between rows of logits
  ChunkProducts first_, middle_, last_;  // one chunk: only last_ is set
  std::int64_t losses_offset_ = 0, inner_offset_ = 0, scratch_bytes_ = 0;
};

}  // namespace mica::cpu
