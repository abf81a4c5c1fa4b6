// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "mica/tensor/kernels.hpp"

// Checks of kernels' arguments. They run at every call, so error texts are built only after a check has failed.
namespace mica::arguments {

/// @throws Error "linear: weight has shape [3, 4] bf16, expected [., 8] ..."
[[noreturn]] void refuse(std::string_view kernel, std::string_view argument, ConstTensorView got, std::string_view expected);

/// The dtypes of activations, parameters and their gradients.
inline constexpr std::initializer_list<DType> kFloats{DType::f32, DType::bf16, DType::f16};

/// The dtypes that a copy converts: optimizer state, too.
inline constexpr std::initializer_list<DType> kConvertible{DType::f32, DType::bf16, DType::f16, DType::moment8, DType::square8};

inline void expect_dtype(std::string_view kernel, std::string_view argument, ConstTensorView view, std::initializer_list<DType> allowed) {
  for (const DType dtype : allowed) {
    if (view.dtype == dtype) return;
  }
  refuse(kernel, argument, view, "another dtype");
}
inline void expect_present(std::string_view kernel, std::string_view argument, ConstTensorView view) {
  if (view.data == nullptr && view.numel() > 0) refuse(kernel, argument, view, "memory, not an absent view");
}
/// Requires a view that is not absent, with `numel` elements of one of the dtypes.
inline void expect(std::string_view kernel, std::string_view argument, ConstTensorView view, std::int64_t numel,
                   std::initializer_list<DType> allowed) {
  expect_dtype(kernel, argument, view, allowed);
  if (view.numel() != numel) refuse(kernel, argument, view, fmt::format("{} elements", numel));
  expect_present(kernel, argument, view);
}
/// Absent, or as expect().
inline void expect_optional(std::string_view kernel, std::string_view argument, ConstTensorView view, std::int64_t numel,
                            std::initializer_list<DType> allowed) {
  if (view) expect(kernel, argument, view, numel, allowed);
}
/// Requires a matrix that is not absent, with `cols` columns.
inline void expect_cols(std::string_view kernel, std::string_view argument, ConstTensorView view, std::int64_t cols,
                        std::initializer_list<DType> allowed) {
  expect_dtype(kernel, argument, view, allowed);
  if (view.shape.num_dims() == 0 || view.shape.back() != cols) {
    refuse(kernel, argument, view, fmt::format("{} columns", cols));
  }
  expect_present(kernel, argument, view);
}

/// What every device requires of the arguments of optimizers. @param moments  dtypes that the device keeps them in. @throws Error
void check_adamw(std::span<const AdamWArgs> list, std::initializer_list<DType> moments);
void check_sgd(std::span<const SgdArgs> list, std::initializer_list<DType> moments);

/// All memory that a step touches; views that the tensors share are listed once.
[[nodiscard]] std::vector<Access> accesses_of(std::span<const AdamWArgs> list);
[[nodiscard]] std::vector<Access> accesses_of(std::span<const SgdArgs> list);

}  // namespace mica::arguments
