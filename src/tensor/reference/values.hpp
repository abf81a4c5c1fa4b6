// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <vector>

#include "mica/tensor/kernels.hpp"

#include "../each_turn.hpp"
#include "../moment_codes.hpp"
#include "../scalar_math.hpp"

namespace mica::reference {

/// Tensors of any float dtype as doubles: what the oracle computes with.
using Values = std::vector<double>;

namespace detail {
template <class T>
void read(const void* data, Values& out) {
  const auto* p = static_cast<const T*>(data);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if constexpr (sizeof(T) == 2) {
      out[i] = static_cast<double>(static_cast<float>(p[i]));
    } else {
      out[i] = static_cast<double>(p[i]);
    }
  }
}
template <class T>
void write(const Values& values, void* data) {
  auto* p = static_cast<T*>(data);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if constexpr (sizeof(T) == 2) {
      p[i] = T(static_cast<float>(values[i]));
    } else {
      p[i] = static_cast<T>(values[i]);
    }
  }
}
template <class Code>
void read_codes(const void* data, Values& out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint32_t code = static_cast<const std::uint8_t*>(data)[i];
    out[i] = static_cast<double>(moment_value<Code, ScalarMath>(code));
  }
}
template <class Code>
void write_codes(const Values& values, void* data) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    static_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(nearest_moment_code<Code, ScalarMath>(static_cast<float>(values[i])));
  }
}
}  // namespace detail

/// Every element of a float view; empty for an absent one.
[[nodiscard]] inline Values values(const ConstTensorView& view) {
  if (!view) return {};
  Values out(static_cast<std::size_t>(view.numel()));
  switch (view.dtype) {
    case DType::f32:
      detail::read<float>(view.data, out);
      break;
    case DType::f64:
      detail::read<double>(view.data, out);
      break;
    case DType::bf16:
      detail::read<bf16>(view.data, out);
      break;
    case DType::f16:
      detail::read<f16>(view.data, out);
      break;
    case DType::moment8:
      detail::read_codes<Moment8Code>(view.data, out);
      break;
    case DType::square8:
      detail::read_codes<Square8Code>(view.data, out);
      break;
    default:
      invariant(false, "a float tensor");
  }
  return out;
}

/// Rounds `result` into the view, replacing or adding to what is there (the sum is rounded once). No-op if absent.
inline void store(const TensorView& view, Values result, Write mode = Write::overwrite) {
  if (!view) return;
  invariant(static_cast<std::int64_t>(result.size()) == view.numel(), "a result as large as its tensor");
  if (mode == Write::accumulate) {
    const Values old = values(view);
    for (std::size_t i = 0; i < result.size(); ++i) result[i] += old[i];
  }
  switch (view.dtype) {
    case DType::f32:
      detail::write<float>(result, view.data);
      break;
    case DType::f64:
      detail::write<double>(result, view.data);
      break;
    case DType::bf16:
      detail::write<bf16>(result, view.data);
      break;
    case DType::f16:
      detail::write<f16>(result, view.data);
      break;
    case DType::moment8:
      detail::write_codes<Moment8Code>(result, view.data);
      break;
    case DType::square8:
      detail::write_codes<Square8Code>(result, view.data);
      break;
    default:
      invariant(false, "a float tensor");
  }
}

/// Enqueues tasks that store `result`, which a task before them fills, range by range ([Note: writing in turns]).
inline void store_in_turns(Stream& s, const char* what, const TensorView& table, const std::shared_ptr<const Values>& result, Write mode,
                           RowTurns& turns) {
  for_each_turn(s, turns, table.shape[0], mode, [&](int, const RowRange& rows, Write rows_mode) {
    const std::int64_t begin = rows.begin * table.shape.back(), end = rows.end * table.shape.back();
    s.submit(what, {writes(rows_of(table, rows))},
             [=] { store(rows_of(table, rows), Values(result->begin() + begin, result->begin() + end), rows_mode); });
  });
  turns.end(s);
}

/// The one element of a [1] tensor.
[[nodiscard]] inline double scalar(const ConstTensorView& view) { return values(view).at(0); }

/// Element (row, col) of a matrix whose rows have `cols` elements.
[[nodiscard]] inline std::size_t at(std::int64_t row, std::int64_t cols, std::int64_t col) {
  return static_cast<std::size_t>(row * cols + col);
}

/// Aborts on a view of another size, which would be read out of bounds. Shapes are not checked.
inline void expect_numel(const ConstTensorView& view, std::int64_t numel, const char* what) {
  if (view) invariant(view.numel() == numel, what);
}

}  // namespace mica::reference
