// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "reference_kernels.hpp"
#include "values.hpp"

namespace mica::reference {

void ReferenceKernels::embedding(Stream& s, ConstTensorView ids, ConstTensorView tokens, ConstTensorView positions, TensorView y) {
  const std::int64_t cols = tokens.shape.back();
  const std::int64_t rows = ids.numel();
  const std::int64_t seq_len = ids.shape.back();
  expect_numel(y, rows * cols, "embedding: y [B,T,C]");
  s.submit("embedding", {reads(ids), reads(tokens), reads(positions), writes(y)}, [=] {
    const auto* id = ids.as<std::int32_t>();
    const Values ts = values(tokens), ps = values(positions);
    Values ys(static_cast<std::size_t>(rows * cols));
    for (std::int64_t i = 0; i < rows; ++i) {
      invariant(id[i] >= 0 && id[i] < tokens.shape[0], "embedding: every id names a row");
      for (std::int64_t j = 0; j < cols; ++j) {
        ys[at(i, cols, j)] = ts[at(id[i], cols, j)] + (ps.empty() ? 0 : ps[at(i % seq_len, cols, j)]);
      }
    }
    store(y, ys);
  });
}

void ReferenceKernels::embedding_backward(Stream& s, ConstTensorView dy, ConstTensorView ids, TensorView dtokens, Write tokens_mode,
                                          TensorView dpositions, Write positions_mode, RowTurns* turns) {
  const std::int64_t cols = dy.shape.back();
  const std::int64_t rows = ids.numel();
  const std::int64_t seq_len = ids.shape.back();
  expect_numel(dy, rows * cols, "embedding_backward: dy [B,T,C]");
  const auto all_tokens = std::make_shared<Values>();
  s.submit("embedding_backward", {reads(dy), reads(ids), writes(turns ? TensorView() : dtokens), writes(dpositions)}, [=] {
    const auto* id = ids.as<std::int32_t>();
    const Values dys = values(dy);
    if (dtokens) {
      Values dts(static_cast<std::size_t>(dtokens.numel()));
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < cols; ++j) dts[at(id[i], cols, j)] += dys[at(i, cols, j)];
      }
      if (!turns) store(dtokens, dts, tokens_mode);
      *all_tokens = std::move(dts);
    }
    if (dpositions) {
      Values dps(static_cast<std::size_t>(dpositions.numel()));
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < cols; ++j) dps[at(i % seq_len, cols, j)] += dys[at(i, cols, j)];
      }
      store(dpositions, dps, positions_mode);
    }
  });
  if (turns) store_in_turns(s, "embedding_backward", dtokens, all_tokens, tokens_mode, *turns);
}

}  // namespace mica::reference
