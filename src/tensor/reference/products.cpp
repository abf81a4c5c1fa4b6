// SPDX-License-Identifier: Apache-2.0
#include "reference_kernels.hpp"
#include "values.hpp"

namespace mica::reference {

void ReferenceKernels::linear(Stream& s, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) {
  const std::int64_t k = x.shape.back();
  const std::int64_t n = w.shape.rows();
  const std::int64_t m = x.shape.rows();
  expect_numel(w, n * k, "linear: w [N,K]");
  expect_numel(bias, n, "linear: bias [N]");
  expect_numel(y, m * n, "linear: y [M,N]");
  s.submit("linear", {reads(x), reads(w), reads(bias), writes(y)}, [=] {
    const Values xs = values(x), ws = values(w), bs = values(bias);
    Values ys(static_cast<std::size_t>(m * n));
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = bs.empty() ? 0 : bs[static_cast<std::size_t>(j)];
        for (std::int64_t l = 0; l < k; ++l) sum += xs[at(i, k, l)] * ws[at(j, k, l)];
        ys[at(i, n, j)] = sum;
      }
    }
    store(y, ys);
  });
}

void ReferenceKernels::linear_backward_input(Stream& s, ConstTensorView dy, ConstTensorView w, TensorView dx, Write mode) {
  const std::int64_t n = dy.shape.back();
  const std::int64_t k = dx.shape.back();
  const std::int64_t m = dy.shape.rows();
  expect_numel(w, n * k, "linear_backward_input: w [N,K]");
  expect_numel(dx, m * k, "linear_backward_input: dx [M,K]");
  s.submit("linear_backward_input", {reads(dy), reads(w), writes(dx)}, [=] {
    const Values dys = values(dy), ws = values(w);
    Values dxs(static_cast<std::size_t>(m * k));
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        for (std::int64_t l = 0; l < k; ++l) dxs[at(i, k, l)] += dys[at(i, n, j)] * ws[at(j, k, l)];
      }
    }
    store(dx, dxs, mode);
  });
}

void ReferenceKernels::linear_backward_params(Stream& s, ConstTensorView dy, ConstTensorView x, TensorView dw, TensorView dbias,
                                              Write mode) {
  const std::int64_t n = dy.shape.back();
  const std::int64_t k = x.shape.back();
  const std::int64_t m = dy.shape.rows();
  expect_numel(x, m * k, "linear_backward_params: x [M,K]");
  expect_numel(dw, n * k, "linear_backward_params: dw [N,K]");
  expect_numel(dbias, n, "linear_backward_params: dbias [N]");
  s.submit("linear_backward_params", {reads(dy), reads(x), writes(dw), writes(dbias)}, [=] {
    const Values dys = values(dy), xs = values(x);
    Values dws(static_cast<std::size_t>(n * k));
    Values dbs(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const double g = dys[at(i, n, j)];
        dbs[static_cast<std::size_t>(j)] += g;
        for (std::int64_t l = 0; l < k; ++l) dws[at(j, k, l)] += g * xs[at(i, k, l)];
      }
    }
    store(dw, dws, mode);
    store(dbias, dbs, mode);
  });
}

}  // namespace mica::reference
