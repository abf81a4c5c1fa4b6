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
  /// @param dw_mode  of the first writing of dw  @param num_ranges  of dw's rows, one product for each ([Note: writing in turns])
  HeadLoss(Products& products, const arguments::HeadTensors& tensors, double scale, Write dw_mode, std::int64_t logits_bytes,
           int num_ranges);

  [[nodiscard]] std::int64_t num_chunks() const { return static_cast<std::int64_t>(chunks_.size()); }
  [[nodiscard]] std::int64_t scratch_bytes() const { return scratch_bytes_; }
  /// The products of run_chunk(), and of write_dw().
  [[nodiscard]] std::vector<ProductSpec> chunk_specs(std::int64_t chunk) const;
  [[nodiscard]] ProductSpec dw_spec(std::int64_t chunk, int range) const;
  /// A chunk's rows of hidden states, or of their gradients.
  template <class View>
  [[nodiscard]] View chunk_of(const View& rows, std::int64_t chunk) const {
    const Chunk& c = chunks_[static_cast<std::size_t>(chunk)];
    return rows ? rows.slice(c.first_row * width_, c.num_rows * width_) : View();
  }

  // On the stream's thread, in this order. All get the same scratch.
  /// The chunk's losses, dhidden and the gradients of its logits. @throws Error naming the first target that is not -1 and not below V.
  void run_chunk(std::int64_t chunk, void* scratch) const;
  /// From the latter, dw's rows of a range. Nothing where no dw is wanted.
  void write_dw(std::int64_t chunk, int range, Write mode, void* scratch) const;
  /// After the last chunk.
  void sum_losses(void* scratch) const;

 private:
  struct DwProducts {
    std::shared_ptr<const Product> overwriting, accumulating;  // null: not needed
  };
  struct Chunk {
    std::int64_t first_row, num_rows;
    std::shared_ptr<const Product> logits;
    std::shared_ptr<const Product> dhidden;  // null: not wanted
    std::vector<DwProducts> dw;              // by range; empty: not wanted
  };
  [[nodiscard]] RowRange range(int i) const { return row_range(vocab_, num_ranges_, i); }
  [[nodiscard]] ProductSpec logits_spec(std::int64_t rows) const;
  [[nodiscard]] ProductSpec dhidden_spec(std::int64_t rows) const;
  [[nodiscard]] ProductSpec dw_spec(std::int64_t rows, const RowRange& classes, Write mode) const;
  [[nodiscard]] Chunk find(Products& products, std::int64_t first_row, std::int64_t num_rows) const;

  arguments::HeadTensors t_;
  double scale_;
  Write dw_mode_;
  std::int64_t rows_, width_, vocab_;  // M, C, V
  int num_ranges_;
  std::int64_t stride_;  // f32 elements between rows of logits
  std::vector<Chunk> chunks_;
  std::int64_t losses_offset_ = 0, inner_offset_ = 0, scratch_bytes_ = 0;
};

}  // namespace mica::cpu
