// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "kernels_testing.hpp"

// What the CPU's kernels find wrong in the elements of their arguments. A GPU's cannot refuse: see tests/gpu.
namespace mica::testing {
namespace {

using ::testing::StartsWith;

class CpuRefusals : public KernelsTest {
 protected:
  /// What `call` is refused with, or "no error".
  [[nodiscard]] std::string refusal_of(const std::function<void()>& call) {
    try {
      call();
      stream_->synchronize();
    } catch (const Error& e) {
      stream_->drain_and_clear_error();
      return e.what();
    }
    return "no error";
  }
};

TEST_P(CpuRefusals, AnIdOutsideTheVocabularyIsNamedAndNothingIsWritten) {
  for (const double wrong : {-1.0, 5.0, 2e9}) {
    HostTensor ids = HostTensor::of(DType::i32, {0, 4, wrong}), tokens = random({5, 3}, 1), y = fresh({3, 3}), dtokens = fresh({5, 3});
    const HostTensor y_before = y, dtokens_before = dtokens;
    const std::string start = fmt::format("embedding: id {} at token 2 is not in the vocabulary [0, 5)", wrong);
    EXPECT_THAT(refusal_of([&] { tested_->embedding(*stream_, ids, tokens, {}, y); }), StartsWith(start));
    EXPECT_THAT(refusal_of([&] { tested_->embedding_backward(*stream_, y, ids, dtokens, Write::overwrite, {}, Write::overwrite); }),
                StartsWith(start));
    EXPECT_TRUE(y.same_bits(y_before));
    EXPECT_TRUE(dtokens.same_bits(dtokens_before));
  }
}

TEST_P(CpuRefusals, ATargetOutsideTheVocabularyIsNamedAndNothingIsWritten) {
  for (const double wrong : {-2.0, 7.0, 2e9}) {
    HostTensor hidden = random({3, 5}, 1), w = random({7, 5}, 2), ids = HostTensor::of(DType::i32, {0, wrong, 6});
    HostTensor loss({1}, DType::f32), dw({7, 5}, DType::f32), dloss = HostTensor::of(DType::f32, {1});
    const HostTensor before = dw;
    EXPECT_THAT(refusal_of([&] { tested_->head_loss_backward(*stream_, hidden, w, ids, 1, dloss, loss, {}, dw, Write::overwrite); }),
                StartsWith(fmt::format("head_loss: target {} in row 1 is not one of the head's classes [0, 7)", wrong)));
    EXPECT_TRUE(dw.same_bits(before));
  }
}

TEST_P(CpuRefusals, ATargetThatIsNoClassIsNamedAndNothingIsWritten) {
  for (const double wrong : {-1.0, 7.0, 2e9}) {
    HostTensor logits = random({3, 7}, 1), targets = HostTensor::of(DType::i32, {0, -100, wrong});
    HostTensor loss({1}, DType::f32), dlogits = fresh({3, 7}), dloss = HostTensor::of(DType::f32, {1});
    const HostTensor before = loss, dlogits_before = dlogits;
    const std::string start = fmt::format("cross_entropy: target {} in row 2 is not one of the 7 classes [0, 7)", wrong);
    EXPECT_THAT(refusal_of([&] { tested_->cross_entropy(*stream_, logits, targets, -100, loss); }), StartsWith(start));
    EXPECT_THAT(refusal_of([&] { tested_->cross_entropy_backward(*stream_, logits, targets, -100, dloss, dlogits); }), StartsWith(start));
    EXPECT_TRUE(loss.same_bits(before));
    EXPECT_TRUE(dlogits.same_bits(dlogits_before));
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, CpuRefusals, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
