// SPDX-License-Identifier: Apache-2.0
#include "head_loss.hpp"

#include <algorithm>
#include <cstring>
#include <initializer_list>

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

HeadLoss::HeadLoss(Products& products, const arguments::HeadTensors& tensors, double scale, Write dw_mode, std::int64_t logits_bytes)
    : t_(tensors),
      scale_(scale),
      accumulate_dw_(dw_mode == Write::accumulate),
      rows_(t_.hidden.shape.rows()),
      width_(t_.w.shape.back()),
      vocab_(t_.w.shape[0]),
      stride_(round_up(vocab_, 16)) {
  std::int64_t most = std::max<std::int64_t>(1, logits_bytes / (4 * stride_));
  if (most > kRowsTogether) most = round_down(most, kRowsTogether);
  const std::int64_t least = divide_up(rows_, kMostChunks);
  most = std::max(most, least > kRowsTogether ? round_up(least, kRowsTogether) : least);
  chunk_ = std::min({rows_, most, round_up(even_part(rows_, most), kRowsTogether)});  // no short last chunk
  const std::int64_t chunks = num_chunks();
  if (chunks > 1) first_ = find(products, 0);
  if (chunks > 2) middle_ = find(products, 1);
  last_ = find(products, chunks - 1);

  losses_offset_ = chunk_ * stride_ * 4;
  inner_offset_ = losses_offset_ + round_up(rows_ * 4, 64);
  std::int64_t inner_bytes = 0;
  for (const ChunkProducts* p : {&first_, &middle_, &last_}) {
    for (const Product* product : {p->logits.get(), p->dhidden.get(), p->dw.get()}) {
      if (product) inner_bytes = std::max(inner_bytes, product->scratch_bytes());
    }
  }
  scratch_bytes_ = inner_offset_ + inner_bytes;
}

std::vector<ProductSpec> HeadLoss::product_specs() const {
  std::vector<ProductSpec> specs;
  for (std::int64_t chunk = 0; chunk < num_chunks(); ++chunk) {
    specs.push_back(logits_spec(chunk_rows(chunk)));
    if (t_.dhidden) specs.push_back(dhidden_spec(chunk_rows(chunk)));
    if (t_.dw) specs.push_back(dw_spec(chunk_rows(chunk), is_accumulating(chunk)));
  }
  return specs;
}

void HeadLoss::run(void* scratch) const {
  check_targets(t_.targets.as<std::int32_t>(), rows_, vocab_);
  auto* memory = static_cast<std::byte*>(scratch);
  const std::int64_t chunks = num_chunks();
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const ChunkProducts& products = chunk == chunks - 1 ? last_ : chunk == 0 ? first_ : middle_;
    run_chunk(chunk * chunk_, chunk_rows(chunk), products, memory);
  }
  if (!t_.loss) return;
  const auto* losses = reinterpret_cast<const float*>(memory + losses_offset_);
  double sum = 0;  // in the rows' order: the same bits on any number of threads
  for (std::int64_t row = 0; row < rows_; ++row) sum += losses[row];
  *t_.loss.as<float>() = static_cast<float>(scale_ * sum);
}

void HeadLoss::run_chunk(std::int64_t first_row, std::int64_t rows, const ChunkProducts& products, std::byte* scratch) const {
  auto* logits = reinterpret_cast<float*>(scratch);
  auto* losses = reinterpret_cast<float*>(scratch + losses_offset_) + first_row;
  std::byte* inner = scratch + inner_offset_;
  const DType dtype = t_.hidden.dtype;
  const std::int32_t* targets = t_.targets.as<std::int32_t>() + first_row;
  const void* hidden = t_.hidden.slice(first_row * width_, rows * width_).data;
  const bool has_gradients = products.dhidden || products.dw;
  const auto factor = has_gradients ? static_cast<float>(scale_ * static_cast<double>(*t_.dloss.as<float>())) : 0.0F;

  products.logits->run(hidden, t_.w.data, nullptr, logits, inner);
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
  if (products.dhidden) {
    void* dhidden = t_.dhidden.slice(first_row * width_, rows * width_).data;
    products.dhidden->run(logits, t_.w.data, nullptr, dhidden, inner);
  }
  if (products.dw) products.dw->run(logits, hidden, nullptr, t_.dw.data, inner);
}

std::int64_t HeadLoss::num_chunks() const { return divide_up(rows_, chunk_); }

std::int64_t HeadLoss::chunk_rows(std::int64_t chunk) const { return std::min(chunk_, rows_ - chunk * chunk_); }

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

ProductSpec HeadLoss::dw_spec(std::int64_t rows, bool accumulate) const {
  return {.m = vocab_,
          .n = width_,
          .k = rows,
          .lda = stride_ * 4 / dtype_bytes(t_.hidden.dtype),
          .ldb = width_,
          .ldc = width_,
          .transposed_a = true,
          .a = t_.hidden.dtype,
          .b = t_.hidden.dtype,
          .c = t_.dw.dtype,
          .accumulate = accumulate};
}

HeadLoss::ChunkProducts HeadLoss::find(Products& products, std::int64_t chunk) const {
  const std::int64_t rows = chunk_rows(chunk);
  ChunkProducts found;
  found.logits = products.find(logits_spec(rows));
  if (t_.dhidden) found.dhidden = products.find(dhidden_spec(rows));
  if (t_.dw) found.dw = products.find(dw_spec(rows, is_accumulating(chunk)));
  return found;
}

}  // namespace mica::cpu
