// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"

namespace mica::arguments {

void refuse(std::string_view kernel, std::string_view argument, ConstTensorView got, std::string_view expected) {
  throw Error(fmt::format("{}: {} is {} {}{}, expected {}", kernel, argument, dtype_name(got.dtype), got.shape.to_string(),
                          got.data == nullptr ? " (absent)" : "", expected));
}

namespace {

template <class Args>
void check_shared(std::string_view kernel, const Args& args, const Args& first) {
  require(args.grad_scale.data == first.grad_scale.data && args.skip.data == first.skip.data,
          "{}: the tensors of one call have grad_scale or skip of their own, expected the same ones", kernel);
}

void check(const AdamWArgs& args, std::initializer_list<DType> moments) {
  const std::int64_t n = args.param.numel();
  expect("adamw", "param", args.param, n, {DType::f32});
  expect("adamw", "grad", args.grad, n, {DType::f32});
  expect("adamw", "exp_avg", args.exp_avg, n, moments);
  expect("adamw", "exp_avg_sq", args.exp_avg_sq, n, {args.exp_avg.dtype == DType::moment8 ? DType::square8 : args.exp_avg.dtype});
  expect_optional("adamw", "grad_scale", args.grad_scale, 1, {DType::f32});
  expect_optional("adamw", "skip", args.skip, 1, {DType::f32});
  expect_optional("adamw", "skipped_steps", args.skipped_steps, 1, {DType::f32});
  require(args.step >= 1, "adamw: step is {}, steps count from 1", args.step);
}

void check(const SgdArgs& args, std::initializer_list<DType> moments) {
  const std::int64_t n = args.param.numel();
  expect("sgd", "param", args.param, n, {DType::f32});
  expect("sgd", "grad", args.grad, n, {DType::f32});
  expect_optional("sgd", "momentum_buffer", args.momentum_buffer, n, moments);
  expect_optional("sgd", "grad_scale", args.grad_scale, 1, {DType::f32});
  expect_optional("sgd", "skip", args.skip, 1, {DType::f32});
  require(args.momentum == 0 || args.momentum_buffer || n == 0, "sgd: momentum {} needs a momentum buffer", args.momentum);
}

}  // namespace

void check_adamw(std::span<const AdamWArgs> list, std::initializer_list<DType> moments) {
  for (const AdamWArgs& args : list) {
    check(args, moments);
    check_shared("adamw", args, list.front());
    require(args.skipped_steps.data == list.front().skipped_steps.data,
            "adamw: the tensors of one call have skipped_steps of their own, expected the same ones");
  }
}

void check_sgd(std::span<const SgdArgs> list, std::initializer_list<DType> moments) {
  for (const SgdArgs& args : list) {
    check(args, moments);
    check_shared("sgd", args, list.front());
  }
}

std::vector<Access> accesses_of(std::span<const AdamWArgs> list) {
  std::vector<Access> accesses;
  if (list.empty()) return accesses;
  accesses.reserve(4 * list.size() + 3);
  for (const AdamWArgs& a : list) {
    for (const TensorView& view : {a.param, a.exp_avg, a.exp_avg_sq}) accesses.push_back(writes(view));
    accesses.push_back(reads(a.grad));
  }
  const AdamWArgs& first = list.front();
  for (const ConstTensorView& view : {first.grad_scale, first.skip, first.skipped_steps}) accesses.push_back(reads(view));
  return accesses;
}

std::vector<Access> accesses_of(std::span<const SgdArgs> list) {
  std::vector<Access> accesses;
  if (list.empty()) return accesses;
  accesses.reserve(3 * list.size() + 2);
  for (const SgdArgs& a : list) {
    for (const TensorView& view : {a.param, a.momentum_buffer}) accesses.push_back(writes(view));
    accesses.push_back(reads(a.grad));
  }
  for (const ConstTensorView& view : {list.front().grad_scale, list.front().skip}) accesses.push_back(reads(view));
  return accesses;
}

}  // namespace mica::arguments
