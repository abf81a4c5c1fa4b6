// SPDX-License-Identifier: Apache-2.0
// What the optimizers' kernels refuse before anything is enqueued.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/tensor/kernels.hpp"

namespace mica {
namespace {

using ::testing::HasSubstr;

class OptimizerArguments : public ::testing::Test {
 protected:
  [[nodiscard]] std::string refusal_of(const std::vector<AdamWArgs>& list) const {
    return text_of([&] { kernels_->adamw(*stream_, list); });
  }
  [[nodiscard]] std::string refusal_of(const std::vector<SgdArgs>& list) const {
    return text_of([&] { kernels_->sgd(*stream_, list); });
  }
  [[nodiscard]] TensorView view(int i) { return {values_[i], Shape{3}, DType::f32}; }
  [[nodiscard]] TensorView scalar(int i) { return {&scalars_[i], Shape{1}, DType::f32}; }
  [[nodiscard]] AdamWArgs adamw() { return {.param = view(0), .grad = view(1), .exp_avg = view(2), .exp_avg_sq = view(3), .step = 1}; }
  [[nodiscard]] SgdArgs sgd() { return {.param = view(0), .grad = view(1)}; }

 private:
  template <class Call>
  [[nodiscard]] std::string text_of(Call&& call) const {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::unique_ptr<Pool> pool_ = make_cpu_pool();
  std::unique_ptr<Stream> stream_ = make_cpu_stream("compute", StreamMode::inlined);
  std::unique_ptr<Kernels> kernels_ = make_cpu_kernels(*pool_);
  float values_[4][3] = {};
  float scalars_[2] = {1, 1};
};

// Of other dtypes than fp32, both moments are in one format.
TEST_F(OptimizerArguments, MomentsGoTogether) {
  const auto of = [](TensorView view, DType dtype) { return TensorView{view.data, view.shape, dtype}; };
  AdamWArgs args = adamw();
  for (const auto& [first, second] : {std::pair(DType::bf16, DType::bf16), std::pair(DType::moment8, DType::square8)}) {
    args.exp_avg = of(view(2), first), args.exp_avg_sq = of(view(3), second);
    EXPECT_EQ(refusal_of(std::vector{args}), "");
  }
  args.exp_avg_sq = view(3);
  EXPECT_THAT(refusal_of(std::vector{args}), HasSubstr("exp_avg_sq is fp32 [3]"));
  args.exp_avg = of(view(2), DType::f16);
  EXPECT_THAT(refusal_of(std::vector{args}), HasSubstr("exp_avg is fp16 [3]"));
  SgdArgs sgd_args = sgd();
  sgd_args.momentum = 0.5, sgd_args.momentum_buffer = of(view(2), DType::u8);
  EXPECT_THAT(refusal_of(std::vector{sgd_args}), HasSubstr("momentum_buffer is uint8 [3]"));
}

TEST_F(OptimizerArguments, StepsCountFromOne) {
  AdamWArgs args = adamw();
  EXPECT_EQ(refusal_of(std::vector{args}), "");
  args.step = 0;
  EXPECT_THAT(refusal_of(std::vector{args}), HasSubstr("step is 0, steps count from 1"));
}

TEST_F(OptimizerArguments, MomentumNeedsItsBuffer) {
  SgdArgs args = sgd();
  args.momentum = 0.5;
  EXPECT_THAT(refusal_of(std::vector{args}), HasSubstr("momentum 0.5 needs a momentum buffer"));
  args.momentum_buffer = view(2);
  EXPECT_EQ(refusal_of(std::vector{args}), "");
}

TEST_F(OptimizerArguments, TensorsOfACallShareTheirScalars) {
  std::vector<AdamWArgs> list{adamw(), adamw()};
  list[0].skipped_steps = list[1].skipped_steps = scalar(0);
  EXPECT_EQ(refusal_of(list), "");
  list[1].skipped_steps = scalar(1);
  EXPECT_THAT(refusal_of(list), HasSubstr("skipped_steps of their own"));
  list[1].skipped_steps = scalar(0);
  list[1].grad_scale = scalar(1);
  EXPECT_THAT(refusal_of(list), HasSubstr("grad_scale or skip of their own"));
  std::vector<SgdArgs> sgds{sgd(), sgd()};
  sgds[1].skip = scalar(1);
  EXPECT_THAT(refusal_of(sgds), HasSubstr("grad_scale or skip of their own"));
}

}  // namespace
}  // namespace mica
