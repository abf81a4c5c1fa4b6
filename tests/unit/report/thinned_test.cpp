// SPDX-License-Identifier: Apache-2.0
#include "thinned.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mica::report {
namespace {

using ::testing::ElementsAre;

// A run that trains adds rows between the count and the second reading; the first of a kind may be one of them.
TEST(Thinned, RowsThatCameLaterAreInTheLastStretch) {
  EXPECT_EQ(bucket_of(0, 0, 0), 0u);
  EXPECT_EQ(bucket_of(3, 0, 0), 0u);
  EXPECT_EQ(bucket_of(9, 10, 5), 4u);
  EXPECT_EQ(bucket_of(10, 10, 5), 4u);
  ThinnedRows<1> none(/*num_rows=*/0, /*num_stretches=*/100);
  EXPECT_TRUE(none.rows().empty());
  none.add(7, {7});
  EXPECT_THAT(none.rows(), ElementsAre(std::array{7.0}));
}

TEST(Thinned, AStretchKeepsItsExtremes) {
  ThinnedRows<1> thinned(/*num_rows=*/9, /*num_stretches=*/3);
  for (const double value : {2, 1, 3, 5, 5, 5, 9, 8, 7}) thinned.add(value, {value});
  EXPECT_THAT(thinned.rows(), ElementsAre(std::array{1.0}, std::array{3.0}, std::array{5.0}, std::array{9.0}, std::array{7.0}));
}

}  // namespace
}  // namespace mica::report
