// SPDX-License-Identifier: Apache-2.0
#include "mica/train/slow_path_notices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mica::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SlowPathNotices, TellOfEachKindOnceWithHowManyShapesItHas) {
  SlowPathNotices notices;
  std::vector<SlowPath> paths;
  EXPECT_THAT(notices.new_lines(paths), IsEmpty());
  paths = {{"attention by Mica's own kernels", "forward", "fp32"},
           {"a GELU apart", "[3,5]", "width 5"},
           {"attention by Mica's own kernels", "backward", "fp32"},
           {"attention by Mica's own kernels", "forward of half", "fp32"}};
  EXPECT_THAT(notices.new_lines(paths), ElementsAre("slow path: attention by Mica's own kernels (forward, and 2 more): fp32",
                                                    "slow path: a GELU apart ([3,5]): width 5"));
  EXPECT_THAT(notices.new_lines(paths), IsEmpty());
  paths.push_back({"a GELU apart", "[3,7]", "width 7"});  // evaluation's, say
  paths.push_back({"operands converted", "[3,7]", "an address"});
  EXPECT_THAT(notices.new_lines(paths), ElementsAre("slow path: operands converted ([3,7]): an address"));
  EXPECT_EQ(slow_path_text(paths[1]), "a GELU apart ([3,5]): width 5");
}

}  // namespace
}  // namespace mica::train
