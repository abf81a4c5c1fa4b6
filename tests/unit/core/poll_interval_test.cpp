// SPDX-License-Identifier: Apache-2.0
#include "mica/core/poll_interval.hpp"

#include <gtest/gtest.h>

namespace mica {
namespace {

TEST(PollInterval, ManyRanksTogetherAskFourThousandTimesASecond) {
  EXPECT_EQ(poll_interval(1).count(), 20);
  EXPECT_EQ(poll_interval(80).count(), 20);
  EXPECT_EQ(poll_interval(1024).count(), 256);
  EXPECT_EQ(poll_interval(100'000).count(), 500) << "but nobody waits longer";
}

}  // namespace
}  // namespace mica
