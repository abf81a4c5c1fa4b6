// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/flight_recorder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mica {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(FlightRecorder, F5_TellsWhatIsPending) {
  FlightRecorder recorder;
  EXPECT_EQ(recorder.describe_pending(), "nothing was ever enqueued");
  const auto a = recorder.enqueue(Collective::all_gather, "h.0", 4096);
  const auto b = recorder.enqueue(Collective::reduce_scatter, "h.1", 512);
  EXPECT_EQ(a, 1);
  EXPECT_EQ(b, 2);
  recorder.start(a);
  EXPECT_THAT(recorder.describe_pending(), AllOf(HasSubstr("#1 all_gather 'h.0' (4096 bytes) running for 0."),
                                                 HasSubstr("#2 reduce_scatter 'h.1' (512 bytes) enqueued 0.")));
  recorder.end(a, true);
  EXPECT_THAT(recorder.describe_pending(), AllOf(Not(HasSubstr("#1")), HasSubstr("#2")));
  recorder.start(b);
  recorder.end(b, false);
  EXPECT_THAT(recorder.describe_pending(), HasSubstr("nothing is pending; last was #2 reduce_scatter 'h.1' (512 bytes) failed"));
}

TEST(FlightRecorder, KeepsTheLastOnesAndForgetsSkippedOnes) {
  FlightRecorder recorder;
  const auto capacity = static_cast<std::int64_t>(FlightRecorder::kCapacity);
  for (std::int64_t i = 1; i <= capacity + 3; ++i) recorder.enqueue(Collective::barrier, std::string(100, 'x'), i);
  recorder.start(2);  // fell out of the ring: ignored
  recorder.end(2, true);
  const auto entries = recorder.entries();
  ASSERT_EQ(entries.size(), FlightRecorder::kCapacity);
  EXPECT_EQ(entries.front().sequence, 4);
  EXPECT_EQ(entries.back().sequence, capacity + 3);
  EXPECT_EQ(std::string(entries.back().label.data()), std::string(47, 'x'));
  recorder.start(capacity + 3);
  EXPECT_EQ(recorder.entries().front().state, CollectiveState::skipped);
  EXPECT_THAT(recorder.describe_pending(), Not(HasSubstr(";")));
}

}  // namespace
}  // namespace mica
