#include "arguments.hpp"

namespace mica::arguments {

void refuse(std::string_view kernel, std::string_view argument, ConstTensorView got, std::string_view expected) {
  throw Error(fmt::format("{}: {} is {} {}{}, expected {}", kernel, argument, dtype_name(got.dtype),
                          got.shape.to_string(), got.data == nullptr ? " (absent)" : "", expected));
}

void check_adamw(const AdamWArgs& args) {
  const std::int64_t n = args.param.numel();
  expect("adamw", "param", args.param, n, {DType::f32});
  expect("adamw", "grad", args.grad, n, {DType::f32});
  expect("adamw", "exp_avg", args.exp_avg, n, {DType::f32});
  expect("adamw", "exp_avg_sq", args.exp_avg_sq, n, {DType::f32});
  expect_optional("adamw", "grad_scale", args.grad_scale, 1, {DType::f32});
  expect_optional("adamw", "skip", args.skip, 1, {DType::f32});
  expect_optional("adamw", "skipped_steps", args.skipped_steps, 1, {DType::f32});
  require(args.step >= 1, "adamw: step is {}, steps count from 1", args.step);
}

void check_sgd(const SgdArgs& args) {
  const std::int64_t n = args.param.numel();
  expect("sgd", "param", args.param, n, {DType::f32});
  expect("sgd", "grad", args.grad, n, {DType::f32});
  expect_optional("sgd", "momentum_buffer", args.momentum_buffer, n, {DType::f32});
  expect_optional("sgd", "grad_scale", args.grad_scale, 1, {DType::f32});
  expect_optional("sgd", "skip", args.skip, 1, {DType::f32});
  require(args.momentum == 0 || args.momentum_buffer || n == 0, "sgd: momentum {} needs a momentum buffer",
          args.momentum);
}

}  // namespace mica::arguments
