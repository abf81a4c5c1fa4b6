// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "../layer_arguments.hpp"
#include "cuda_kernels.hpp"
#include "reduce.hpp"
#include "sort_ids.hpp"
#include "vectors.hpp"

namespace mica::cuda {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kWarps = kBlockThreads / kWarp;

/// One warp per row of y. A row whose id is not in the vocabulary becomes NaN: a kernel cannot throw, and reading some other row would
/// hide the error.
template <class T, int kCount>
__global__ void embedding_kernel(const std::int32_t* ids, std::int64_t rows, std::int64_t seq_len, std::int64_t vocab, std::int64_t width,
                                 const T* tokens, const T* positions, T* y) {
  constexpr Lanes<kCount> lanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; row < rows; row += warps) {
    const std::int64_t id = ids[row];
    const bool is_known = id >= 0 && id < vocab;
    const T* token = tokens + (is_known ? id : 0) * width;
    for (std::int64_t j = lane * kCount; j < width; j += kWarp * kCount) {
      auto sum = load(token + j, lanes);
      if (positions != nullptr) {
        const auto position = load(positions + row % seq_len * width + j, lanes);
#pragma unroll
        for (int l = 0; l < kCount; ++l) sum.v[l] += position.v[l];
      }
#pragma unroll
      for (int l = 0; l < kCount; ++l) sum.v[l] = is_known ? sum.v[l] : NAN;
      store(y + row * width + j, sum, lanes);
    }
  }
}

/// The rows of dy in the order of their ids, kChunk at a time. [Note: gradients of an embedding on a GPU]
/// A warp adds the rows of one chunk in order, for kWarp * kCount columns. An id whose rows are all in the chunk is then done. The sum of
/// an id that began in an earlier chunk goes to parts[chunk, 0]; of one that only continues in the next chunk, to parts[chunk, 1]. Then
/// the warp of the chunk in which an id begins adds the id's other parts, chunk by chunk. Who adds what depends only on the ids, so the
/// bits are the same in every run, and an id of half the tokens takes no longer than others.
constexpr std::int64_t kChunk = 32;

struct SortedRows {
  const std::int32_t* order;  // [count]
  const std::int32_t* ids;    // [count]
  std::int64_t count, vocab, width;

  __device__ std::int64_t row(std::int64_t place) const { return order[place]; }
  __device__ std::int32_t id(std::int64_t place) const { return ids[order[place]]; }
  __device__ bool is_known(std::int32_t id) const { return id >= 0 && id < vocab; }
  __device__ std::int64_t num_chunks() const { return (count + kChunk - 1) / kChunk; }
};

template <class T, int kCount>
__device__ void add_values(Values<kCount>& sum, const T* from) {
  const auto values = load(from, Lanes<kCount>{});
#pragma unroll
  for (int l = 0; l < kCount; ++l) sum.v[l] += values.v[l];
}

template <class T, int kCount>
__device__ void write_row(T* to, Values<kCount> sum, bool accumulate) {
  if (accumulate) add_values(sum, to);
  store(to, sum, Lanes<kCount>{});
}

template <class T, class Gradient, int kCount>
__global__ void sum_rows_kernel(SortedRows rows, const T* dy, float* parts, Gradient* dtokens, bool accumulate) {
  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const std::int64_t j = (static_cast<std::int64_t>(blockIdx.y) * kWarp + threadIdx.x % kWarp) * kCount;
  if (chunk >= rows.num_chunks() || j >= rows.width) return;
  const std::int64_t begin = chunk * kChunk;
  const std::int64_t end = begin + kChunk < rows.count ? begin + kChunk : rows.count;
  std::int32_t id = rows.id(begin);
  bool began_earlier = begin > 0 && rows.id(begin - 1) == id;
  Values<kCount> sum{};
  const auto finish = [&](bool goes_on) {
    if (!rows.is_known(id)) return;
    if (began_earlier || goes_on) {
      store(parts + (chunk * 2 + (began_earlier ? 0 : 1)) * rows.width + j, sum, Lanes<kCount>{});
    } else {
      write_row(dtokens + id * rows.width + j, sum, accumulate);
    }
  };
  for (std::int64_t place = begin; place < end; ++place) {
    const std::int32_t next = rows.id(place);
    if (next != id) {
      finish(false);
      id = next;
      began_earlier = false;
      sum = {};
    }
    add_values(sum, dy + rows.row(place) * rows.width + j);
  }
  finish(end < rows.count && rows.id(end) == id);
}

template <class Gradient, int kCount>
__global__ void join_parts_kernel(SortedRows rows, const float* parts, Gradient* dtokens, bool accumulate) {
  std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const std::int64_t j = (static_cast<std::int64_t>(blockIdx.y) * kWarp + threadIdx.x % kWarp) * kCount;
  if (chunk + 1 >= rows.num_chunks() || j >= rows.width) return;
  const std::int64_t begin = chunk * kChunk, next = begin + kChunk;
  const std::int32_t id = rows.id(next - 1);
  const bool began_earlier = begin > 0 && rows.id(begin - 1) == id;
  if (!rows.is_known(id) || began_earlier || rows.id(next) != id) return;
  auto sum = load(parts + (chunk * 2 + 1) * rows.width + j, Lanes<kCount>{});
  for (++chunk; chunk < rows.num_chunks() && rows.id(chunk * kChunk) == id; ++chunk) {
    add_values(sum, parts + chunk * 2 * rows.width + j);
  }
  write_row(dtokens + id * rows.width + j, sum, accumulate);
}

/// dpositions[t] (+)= the sum of dy[b, t] over the sequences in order.
template <class T, class Gradient, int kCount>
__global__ void positions_kernel(const T* dy, std::int64_t batch, std::int64_t row_numel, Gradient* dpositions, bool accumulate) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kCount;
  for (; i < row_numel; i += threads * kCount) {
    Values<kCount> sum{};
#pragma unroll 8
    for (std::int64_t b = 0; b < batch; ++b) add_values(sum, dy + b * row_numel + i);
    write_row(dpositions + i, sum, accumulate);
  }
}

void zero(Stream& s, TensorView view) {
  if (view.numel() == 0) return;
  s.submit("embedding_backward", {mica::writes(view)}, [view, stream = native(s)] {
    check(cudaMemsetAsync(view.data, 0, static_cast<std::size_t>(view.bytes()), stream), "cudaMemsetAsync");
  });
}

}  // namespace

void CudaKernels::embedding(Stream& s, ConstTensorView ids, ConstTensorView tokens, ConstTensorView positions, TensorView y) {
  const std::int64_t width = tokens.shape.back();
  check_embedding(ids, tokens, positions, y);
  if (y.numel() == 0) return;
  with_element(y.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kCount = kLanes<T>;
    const bool in_vectors = width % kCount == 0 && is_aligned(tokens.data, 16) && is_aligned(positions.data, 16) && is_aligned(y.data, 16);
    if (!in_vectors) slow_paths_.note_one_by_one("embedding", y.shape, y.dtype);
    launch(s, "embedding", {reads(ids), reads(tokens), reads(positions), mica::writes(y)},
           Grid{std::clamp<std::int64_t>((ids.numel() + kWarps - 1) / kWarps, 1, 8192)},
           in_vectors ? embedding_kernel<T, kCount> : embedding_kernel<T, 1>, static_cast<const std::int32_t*>(ids.data), ids.numel(),
           ids.shape.back(), tokens.shape[0], width, static_cast<const T*>(tokens.data), static_cast<const T*>(positions.data),
           static_cast<T*>(y.data));
  });
}

void CudaKernels::embedding_backward(Stream& s, ConstTensorView dy, ConstTensorView ids, TensorView dtokens, Write tokens_mode,
                                     TensorView dpositions, Write positions_mode, RowTurns* turns) {
  require(turns == nullptr, "embedding_backward: gradients are written in turns on a CPU only");
  const std::int64_t width = dy.shape.back();
  const std::int64_t count = ids.numel(), seq_len = ids.shape.back();
  check_embedding_backward(dy, ids, dtokens, dpositions);
  require(count < std::numeric_limits<std::int32_t>::max(), "embedding_backward: {} tokens, expected less than 2^31", count);

  if (dtokens && tokens_mode == Write::overwrite) zero(s, dtokens);
  if (dtokens && dy.numel() > 0) {
    const std::int64_t chunks = (count + kChunk - 1) / kChunk;
    const Buffer order_space = scratch(s, sort_ids_scratch_bytes(count));
    const Buffer part_space = scratch(s, chunks * 2 * width * 4);
    const SortedRows rows{.order = sort_ids(s, ids, dtokens.shape[0], order_space),
                          .ids = static_cast<const std::int32_t*>(ids.data),
                          .count = count,
                          .vocab = dtokens.shape[0],
                          .width = width};
    auto* parts = static_cast<float*>(part_space.data());
    with_element(dy.dtype, [&](auto element) {
      with_element(dtokens.dtype, [&](auto gradient) {
        using T = decltype(element);
        using Gradient = decltype(gradient);
        constexpr int kCount = 4;
        const bool in_vectors = width % kCount == 0 && is_aligned(dy.data, 16) && is_aligned(dtokens.data, 16);
        if (!in_vectors) slow_paths_.note_one_by_one("embedding_backward", dy.shape, dy.dtype);
        const std::int64_t columns = kWarp * (in_vectors ? kCount : 1);
        const Grid grid{(chunks + kWarps - 1) / kWarps, (width + columns - 1) / columns};
        auto* to = static_cast<Gradient*>(dtokens.data);
        // Rows of ids that do not occur are zero already, so overwriting and accumulating give the same.
        const bool accumulate = tokens_mode == Write::accumulate;
        launch(s, "embedding_backward", {reads(dy), reads(ids), writes(order_space), writes(part_space), mica::writes(dtokens)}, grid,
               in_vectors ? sum_rows_kernel<T, Gradient, kCount> : sum_rows_kernel<T, Gradient, 1>, rows, static_cast<const T*>(dy.data),
               parts, to, accumulate);
        launch(s, "embedding_backward", {reads(ids), writes(order_space), writes(part_space), mica::writes(dtokens)}, grid,
               in_vectors ? join_parts_kernel<Gradient, kCount> : join_parts_kernel<Gradient, 1>, rows, parts, to, accumulate);
      });
    });
  }

  if (!dpositions) return;
  const std::int64_t batch = seq_len == 0 ? 0 : count / seq_len;
  if (positions_mode == Write::overwrite) {
    const std::int64_t first = batch == 0 ? 0 : seq_len * width;
    zero(s, dpositions.slice(first, dpositions.numel() - first));
  }
  if (batch == 0 || width == 0) return;
  with_element(dy.dtype, [&](auto element) {
    with_element(dpositions.dtype, [&](auto gradient) {
      using T = decltype(element);
      using Gradient = decltype(gradient);
      constexpr int kCount = 4;
      const bool in_vectors = width % kCount == 0 && is_aligned(dy.data, 16) && is_aligned(dpositions.data, 16);
      launch(s, "embedding_backward", {reads(dy), mica::writes(dpositions)}, Grid::over(seq_len * width, in_vectors ? kCount : 1),
             in_vectors ? positions_kernel<T, Gradient, kCount> : positions_kernel<T, Gradient, 1>, static_cast<const T*>(dy.data), batch,
             seq_len * width, static_cast<Gradient*>(dpositions.data), positions_mode == Write::accumulate);
    });
  });
}

}  // namespace mica::cuda
