// SPDX-License-Identifier: Apache-2.0
#include "head_loss.hpp"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "mica/core/error.hpp"

#include "loops.hpp"
#include "parallel.hpp"

namespace mica::cpu {

namespace {

constexpr std::int64_t kRowsTogether = 32;  // products of whole multiples leave no edges
/// [Note: roundings of dw] A dw of bf16 is rounded after each chunk. 26 times made an error of 0.5 %, 256 times 5 to 7 %
/// (docs/performance.md); after a thousand a chunk's part is less than half a step of the sum, and is lost: the gradient is half as long.
/// Each chunk also reads and writes all of dw. 16 chunks of a long micro-batch take a hundredth of what its activations take.
constexpr std::int64_t kMostChunks = 16;

/// Checked before anything is written: a target out of range would read outside the logits.
void check_targets(const std::int32_t* targets, std::int64_t rows, std::int64_t vocab) {
  for (std::int64_t row = 0; row < rows; ++row) {
    if (targets[row] >= -1 && targets[row] < vocab) continue;
    throw Error(
        fmt::format("head_loss: target {} in row {} is not one of the head's classes [0, {}) and not -1 (ignored): give the head "
                    "as many classes as there are labels; for tokens: was the text tokenized with a larger vocabulary than "
                    "model.vocab_size?",
                    targets[row], row, vocab));
  }
}

}  // namespace

HeadLoss::HeadLoss(Products& products, const arguments::HeadTensors& tensors, double scale, Write dw_mode, std::int64_t logits_bytes,
                   int num_ranges)
    : t_(tensors),
      scale_(scale),
      dw_mode_(dw_mode),
      rows_(t_.hidden.shape.rows()),
      width_(t_.w.shape.back()),
      vocab_(t_.w.shape[0]),
      num_ranges_(num_ranges),
      stride_(round_up(vocab_, 16)) {
  std::int64_t most = std::max<std::int64_t>(1, logits_bytes / (4 * stride_));
  if (most > kRowsTogether) most = round_down(most, kRowsTogether);
  const std::int64_t least = divide_up(rows_, kMostChunks);
  most = std::max(most, least > kRowsTogether ? round_up(least, kRowsTogether) : least);
  const std::int64_t chunk = std::min({rows_, most, round_up(even_part(rows_, most), kRowsTogether)});  // no short last chunk
  for (std::int64_t row = 0; row < rows_; row += chunk) chunks_.push_back(find(products, row, std::min(chunk, rows_ - row)));

  losses_offset_ = chunk * stride_ * 4;
  inner_offset_ = losses_offset_ + round_up(rows_ * 4, 64);
  std::int64_t inner_bytes = 0;
  const auto make_room_for = [&](const std::shared_ptr<const Product>& product) {
    if (product) inner_bytes = std::max(inner_bytes, product->scratch_bytes());
  };
  for (const Chunk& each : chunks_) {
    make_room_for(each.logits);
    make_room_for(each.dhidden);
    for (const DwProducts& dw : each.dw) {
      make_room_for(dw.overwriting);
      make_room_for(dw.accumulating);
    }
  }
  scratch_bytes_ = inner_offset_ + inner_bytes;
}

HeadLoss::Chunk HeadLoss::find(Products& products, std::int64_t first_row, std::int64_t num_rows) const {
  Chunk found{.first_row = first_row, .num_rows = num_rows, .logits = products.find(logits_spec(num_rows)), .dhidden = {}, .dw = {}};
  if (t_.dhidden) found.dhidden = products.find(dhidden_spec(num_rows));
  const bool overwrites = first_row == 0 && dw_mode_ == Write::overwrite;
  for (int i = 0; t_.dw && i < num_ranges_; ++i) {
    DwProducts& dw = found.dw.emplace_back();
    if (range(i).num_rows() == 0) continue;
    if (overwrites) dw.overwriting = products.find(dw_spec(num_rows, range(i), Write::overwrite));
    // Of several ranges only one is overwritten; which one is known when its turn is taken.
    if (!overwrites || num_ranges_ > 1) dw.accumulating = products.find(dw_spec(num_rows, range(i), Write::accumulate));
  }
  return found;
}

std::vector<ProductSpec> HeadLoss::chunk_specs(std::int64_t chunk) const {
  const std::int64_t rows = chunks_[static_cast<std::size_t>(chunk)].num_rows;
  std::vector<ProductSpec> specs{logits_spec(rows)};
  if (t_.dhidden) specs.push_back(dhidden_spec(rows));
  return specs;
}

ProductSpec HeadLoss::dw_spec(std::int64_t chunk, int i) const {
  return dw_spec(chunks_[static_cast<std::size_t>(chunk)].num_rows, range(i), Write::accumulate);
}

void HeadLoss::run_chunk(std::int64_t chunk, void* scratch) const {
  if (chunk == 0) check_targets(t_.targets.as<std::int32_t>(), rows_, vocab_);
  const Chunk& products = chunks_[static_cast<std::size_t>(chunk)];
  const auto [first_row, rows] = std::pair(products.first_row, products.num_rows);
  auto* memory = static_cast<std::byte*>(scratch);
  auto* logits = static_cast<float*>(scratch);
  auto* losses = reinterpret_cast<float*>(memory + losses_offset_) + first_row;
  std::byte* inner = memory + inner_offset_;
  const DType dtype = t_.hidden.dtype;
  const std::int32_t* targets = t_.targets.as<std::int32_t>() + first_row;
  const bool has_gradients = t_.dhidden || t_.dw;
  const auto factor = has_gradients ? static_cast<float>(scale_ * static_cast<double>(*t_.dloss.as<float>())) : 0.0F;

  products.logits->run(chunk_of(t_.hidden, chunk).data, t_.w.data, nullptr, logits, inner);
  parallel_ranges(rows, row_grain(vocab_), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* scores = logits + row * stride_;
      if (targets[row] < 0) {
        losses[row] = 0;
        if (has_gradients) std::memset(scores, 0, static_cast<std::size_t>(vocab_ * dtype_bytes(dtype)));
        continue;
      }
      RowSoftmax softmax;
      losses[row] = loops().cross_entropy_row(scores, vocab_, targets[row], &softmax);
      if (!has_gradients) continue;
      loops().cross_entropy_backward_row(scores, vocab_, targets[row], softmax, factor, scores, dtype);
    }
  });
  if (products.dhidden) products.dhidden->run(logits, t_.w.data, nullptr, chunk_of(t_.dhidden, chunk).data, inner);
}

void HeadLoss::write_dw(std::int64_t chunk, int i, Write mode, void* scratch) const {
  const Chunk& products = chunks_[static_cast<std::size_t>(chunk)];
  const RowRange classes = range(i);
  if (products.dw.empty() || classes.num_rows() == 0) return;
  auto* memory = static_cast<std::byte*>(scratch);
  const void* dlogits = memory + classes.begin * dtype_bytes(t_.hidden.dtype);
  const DwProducts& dw = products.dw[static_cast<std::size_t>(i)];
  const Product& product = mode == Write::overwrite ? *dw.overwriting : *dw.accumulating;
  product.run(dlogits, chunk_of(t_.hidden, chunk).data, nullptr, rows_of(t_.dw, classes).data, memory + inner_offset_);
}

void HeadLoss::sum_losses(void* scratch) const {
  if (!t_.loss) return;
  const auto* losses = reinterpret_cast<const float*>(static_cast<std::byte*>(scratch) + losses_offset_);
  double sum = 0;  // in the rows' order: the same bits on any number of threads
  for (std::int64_t row = 0; row < rows_; ++row) sum += losses[row];
  *t_.loss.as<float>() = static_cast<float>(scale_ * sum);
}

ProductSpec HeadLoss::logits_spec(std::int64_t rows) const {
  return {.m = rows,
          .n = vocab_,
          .k = width_,
          .lda = width_,
          .ldb = width_,
          .ldc = stride_,
          .transposed_b = true,
          .a = t_.hidden.dtype,
          .b = t_.w.dtype,
          .c = DType::f32};
}

ProductSpec HeadLoss::dhidden_spec(std::int64_t rows) const {
  return {.m = rows,
          .n = width_,
          .k = vocab_,
          .lda = stride_ * 4 / dtype_bytes(t_.hidden.dtype),
          .ldb = width_,
          .ldc = width_,
          .a = t_.hidden.dtype,
          .b = t_.w.dtype,
          .c = t_.dhidden.dtype};
}

ProductSpec HeadLoss::dw_spec(std::int64_t rows, const RowRange& classes, Write mode) const {
  return {.m = classes.num_rows(),
          .n = width_,
          .k = rows,
          .lda = stride_ * 4 / dtype_bytes(t_.hidden.dtype),
          .ldb = width_,
          .ldc = width_,
          .transposed_a = true,
          .a = t_.hidden.dtype,
          .b = t_.hidden.dtype,
          .c = t_.dw.dtype,
          .accumulate = mode == Write::accumulate};
}

}  // namespace mica::cpu
