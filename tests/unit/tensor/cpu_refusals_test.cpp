#include "kernels_testing.hpp"

// What the CPU's kernels find wrong in the elements of their arguments. A GPU's cannot refuse: see tests/gpu.
namespace mica::testing {
namespace {

class CpuRefusals : public KernelsTest {};

TEST_P(CpuRefusals, AnIdOutsideTheVocabularyIsNamedAndNothingIsWritten) {
  for (const double wrong : {-1.0, 5.0, 2e9}) {
    HostTensor ids = HostTensor::of(DType::i32, {0, 4, wrong}), tokens = random({5, 3}, 1), y = fresh({3, 3}),
               dtokens = fresh({5, 3});
    const HostTensor y_before = y, dtokens_before = dtokens;
    const std::string start = fmt::format("embedding: id {} at token 2 is not in the vocabulary [0, 5)", wrong);
    const auto message = [&](const std::function<void()>& call) -> std::string {
      try {
        call();
        stream_->synchronize();
      } catch (const Error& e) {
        stream_->drain_and_clear_error();
        return std::string(e.what()).substr(0, start.size());
      }
      return "no error";
    };
    EXPECT_EQ(message([&] { tested_->embedding(*stream_, ids, tokens, {}, y); }), start);
    EXPECT_EQ(message([&] {
                tested_->embedding_backward(*stream_, y, ids, dtokens, Write::overwrite, {}, Write::overwrite);
              }),
              start);
    EXPECT_TRUE(y.same_bits(y_before));
    EXPECT_TRUE(dtokens.same_bits(dtokens_before));
  }
}

TEST_P(CpuRefusals, ATargetOutsideTheVocabularyIsNamedAndNothingIsWritten) {
  for (const double wrong : {-2.0, 7.0, 2e9}) {
    HostTensor hidden = random({3, 5}, 1), w = random({7, 5}, 2), ids = HostTensor::of(DType::i32, {0, wrong, 6});
    HostTensor loss({1}, DType::f32), dw({7, 5}, DType::f32), dloss = HostTensor::of(DType::f32, {1});
    const HostTensor before = dw;
    try {
      tested_->head_loss_backward(*stream_, hidden, w, ids, 1, dloss, loss, {}, dw, Write::overwrite);
      stream_->synchronize();
      FAIL() << "target " << wrong << " was taken";
    } catch (const Error& e) {
      const std::string start =
          fmt::format("head_loss: target {} in row 1 is not one of the head's classes [0, 7)", wrong);
      EXPECT_EQ(std::string(e.what()).substr(0, start.size()), start);
    }
    stream_->drain_and_clear_error();
    EXPECT_TRUE(dw.same_bits(before));
  }
}

TEST_P(CpuRefusals, ATargetThatIsNoClassIsNamedAndNothingIsWritten) {
  for (const double wrong : {-1.0, 7.0, 2e9}) {
    HostTensor logits = random({3, 7}, 1), targets = HostTensor::of(DType::i32, {0, -100, wrong});
    HostTensor loss({1}, DType::f32), dlogits = fresh({3, 7}), dloss = HostTensor::of(DType::f32, {1});
    const HostTensor before = loss, dlogits_before = dlogits;
    const std::string start = fmt::format("cross_entropy: target {} in row 2 is not one of the 7 classes [0, 7)", wrong);
    const auto message = [&](const std::function<void()>& call) -> std::string {
      try {
        call();
        stream_->synchronize();
      } catch (const Error& e) {
        stream_->drain_and_clear_error();
        return std::string(e.what()).substr(0, start.size());
      }
      return "no error";
    };
    EXPECT_EQ(message([&] { tested_->cross_entropy(*stream_, logits, targets, -100, loss); }), start);
    EXPECT_EQ(message([&] { tested_->cross_entropy_backward(*stream_, logits, targets, -100, dloss, dlogits); }), start);
    EXPECT_TRUE(loss.same_bits(before));
    EXPECT_TRUE(dlogits.same_bits(dlogits_before));
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, CpuRefusals, all_lanes(), lane_name);

}  // namespace
}  // namespace mica::testing
