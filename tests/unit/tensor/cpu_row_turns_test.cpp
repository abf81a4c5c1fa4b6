// SPDX-License-Identifier: Apache-2.0
// Gradients of tables that a CPU's kernels write in turns ([Note: writing in turns]), against the oracle.
#include <gtest/gtest.h>

#include "mica/tensor/row_turns.hpp"

#include "kernels_testing.hpp"

namespace mica::testing {
namespace {

/// The turns of one rank that never waits, counted.
class LoneTurns final : public RowTurns {
 public:
  LoneTurns(int num_ranges, int rank) : num_ranges_(num_ranges), rank_(rank) {}

  [[nodiscard]] int num_ranges() const override { return num_ranges_; }
  Turn take(Stream&) override {
    EXPECT_FALSE(is_taken_ || is_over_);
    is_taken_ = true;
    return {.range = (rank_ + num_turns_) % num_ranges_, .is_first = num_turns_ == 0};
  }
  void pass_on(Stream&) override {
    EXPECT_TRUE(is_taken_);
    is_taken_ = false;
    ++num_turns_;
  }
  void end(Stream&) override {
    EXPECT_FALSE(is_taken_ || is_over_);
    EXPECT_GT(num_turns_, 0);
    EXPECT_EQ(num_turns_ % num_ranges_, 0) << "every range as often as the others";
    is_over_ = true;
  }
  [[nodiscard]] bool is_over() const { return is_over_; }

 private:
  int num_ranges_, rank_, num_turns_ = 0;
  bool is_taken_ = false, is_over_ = false;
};

struct Group {
  int num_ranges, rank;
};
constexpr Group kGroups[] = {{1, 0}, {2, 1}, {3, 0}, {5, 3}, {40, 2}};

/// 4 KiB of logits: the larger heads take several chunks.
class RowTurnsOfKernels : public KernelsTest {
 protected:
  RowTurnsOfKernels() : KernelsTest({.logits_bytes = 4096}) {}
  /// `call` with both kernels, each with turns of its own.
  void both_in_turns(const Group& group, const std::function<void(Kernels&, bool is_reference, RowTurns& turns)>& call) {
    both([&](Kernels& kernels, bool r) {
      LoneTurns turns(group.num_ranges, group.rank);
      call(kernels, r, turns);
      EXPECT_TRUE(turns.is_over());
    });
  }
};

TEST(RowRanges, CoverEveryRowOnce) {
  for (const std::int64_t rows : {0, 1, 31, 32, 33, 64, 97, 4099}) {
    for (const int n : {1, 2, 3, 7, 200}) {
      std::int64_t end = 0;
      for (int i = 0; i < n; ++i) {
        const RowRange range = row_range(rows, n, i);
        EXPECT_EQ(range.begin, end);
        EXPECT_TRUE(range.begin % 32 == 0 || range.num_rows() == 0);
        end = range.end;
      }
      EXPECT_EQ(end, rows);
    }
  }
}

TEST_P(RowTurnsOfKernels, HeadsAreTheOracles) {
  struct Dims {
    std::int64_t rows, vocab, width;
  };
  for (const Dims& d : {Dims{1, 1, 1}, {3, 7, 5}, {17, 33, 3}, {65, 129, 33}, {7, 1000, 17}, {200, 97, 8}}) {
    for (const Group& group : kGroups) {
      for (const DType gradient : {DType::f32, DType::bf16}) {
        for (const Write mode : {Write::overwrite, Write::accumulate}) {
          HostTensor hidden = random({d.rows, d.width}, 1), w = random({d.vocab, d.width}, 2),
                     ids = HostTensor::random_ids({d.rows}, d.vocab, 3);
          HostTensor dloss = HostTensor::of(DType::f32, {0.75});
          Pair loss({1}, DType::f32), dhidden({d.rows, d.width}, dtype()), dw(HostTensor::random({d.vocab, d.width}, gradient, 5));
          both_in_turns(group, [&](Kernels& kernels, bool r, RowTurns& turns) {
            kernels.head_loss_backward(*stream_, hidden, w, ids, 0.1, dloss, loss.of(r), dhidden.of(r), dw.of(r), mode, &turns);
          });
          const double relative = dtype() == DType::f32 && gradient == DType::f32 ? 1e-5 : 0.02;
          const std::string what =
              fmt::format("{} rows, vocab {}, range {} of {}, dw {}, {}", d.rows, d.vocab, group.rank, group.num_ranges,
                          dtype_name(gradient), mode == Write::overwrite ? "overwritten" : "accumulated");
          EXPECT_TRUE(loss.near_as_a_whole(relative)) << what;
          EXPECT_TRUE(dhidden.near_as_a_whole(relative)) << what;
          EXPECT_TRUE(dw.near_as_a_whole(relative)) << what;
        }
      }
    }
  }
}

TEST_P(RowTurnsOfKernels, AHeadWithoutRowsOverwritesItsFirstRange) {
  HostTensor hidden = random({0, 5}, 1), w = random({97, 5}, 2), ids({0}, DType::i32), loss({1}, DType::f32);
  HostTensor dloss = HostTensor::of(DType::f32, {1});
  const HostTensor before = HostTensor::random({97, 5}, DType::f32, 4);
  HostTensor dw = before;
  LoneTurns turns(2, 1);
  tested_->head_loss_backward(*stream_, hidden, w, ids, 1, dloss, loss, {}, dw, Write::overwrite, &turns);
  stream_->synchronize();
  EXPECT_TRUE(turns.is_over());
  EXPECT_EQ(loss.at(0), 0);
  for (std::int64_t i = 0; i < dw.numel(); ++i) ASSERT_EQ(dw.at(i), i < 64 * 5 ? before.at(i) : 0);
}

TEST_P(RowTurnsOfKernels, EmbeddingsAreTheOracles) {
  struct Dims {
    std::int64_t batch, seq_len, vocab, width;
  };
  for (const Dims& d : {Dims{1, 1, 1, 1}, {3, 7, 5, 3}, {2, 33, 65, 17}, {4, 65, 97, 129}, {0, 5, 70, 4}}) {
    for (const Group& group : kGroups) {
      for (const Write mode : {Write::overwrite, Write::accumulate}) {
        HostTensor ids = HostTensor::random_ids({d.batch, d.seq_len}, d.vocab, 1), dy = random({d.batch, d.seq_len, d.width}, 2);
        Pair tokens(HostTensor::random({d.vocab, d.width}, DType::f32, 3)), positions({d.seq_len, d.width}, DType::f32);
        both_in_turns(group, [&](Kernels& kernels, bool r, RowTurns& turns) {
          kernels.embedding_backward(*stream_, dy, ids, tokens.of(r), mode, positions.of(r), Write::overwrite, &turns);
        });
        const std::string what = fmt::format("vocab {}, range {} of {}", d.vocab, group.rank, group.num_ranges);
        EXPECT_TRUE(tokens.near(sum_error(d.batch * d.seq_len + 1))) << what;
        EXPECT_TRUE(positions.near(sum_error(d.batch + 1))) << what;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, RowTurnsOfKernels,
                         ::testing::Values(Lane{StreamMode::inlined, 1, DType::f32}, Lane{StreamMode::threaded, kManyThreads, DType::f32},
                                           Lane{StreamMode::inlined, 1, DType::bf16},
                                           Lane{StreamMode::threaded, kManyThreads, DType::bf16}),
                         lane_name);

}  // namespace
}  // namespace mica::testing
