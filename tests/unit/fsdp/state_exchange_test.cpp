// SPDX-License-Identifier: Apache-2.0
// Which rank's dict each element of a loaded state dict comes from.
#include "../../../src/fsdp/state_exchange.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

namespace mica::fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Arrays of the given numels.
StateArrays arrays_of(const std::vector<std::int64_t>& numels) {
  StateArrays arrays;
  for (std::size_t i = 0; i < numels.size(); ++i) arrays.all.push_back({"array" + std::to_string(i), Shape{numels[i]}, DType::f32});
  return arrays;
}

FoundRun found(std::int64_t begin, std::int64_t end, std::int64_t rank, std::int64_t array = 0) {
  return {array, {begin, end, 0}, rank, 0};
}

TEST(ChooseRuns, TheOneThatReachesFurthestThenTheLowestRank) {
  std::vector<std::string> missing;
  const std::vector<FoundRun> chosen = choose_runs(
      arrays_of({10, 4, 0}),
      {found(6, 10, 1), found(0, 4, 0), found(3, 8, 2), found(5, 10, 3), found(0, 4, 3), found(8, 8, 0), found(0, 0, 1, 2)}, missing);
  EXPECT_THAT(chosen, ElementsAre(FoundRun{0, {0, 4, 0}, 0, 0}, FoundRun{0, {4, 8, 1}, 2, 0}, FoundRun{0, {8, 10, 2}, 1, 0}));
  EXPECT_THAT(missing, ElementsAre("array1"));
}

TEST(ChooseRuns, NamesTheRowsThatNobodyHas) {
  const auto text = [](std::vector<FoundRun> runs) -> std::string {
    std::vector<std::string> missing;
    try {
      static_cast<void>(choose_runs(arrays_of({10}), std::move(runs), missing));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(text({found(4, 10, 0), found(2, 2, 1)}), HasSubstr("no rank has rows [0, 4) of array0 [10]"));
  EXPECT_THAT(text({found(7, 10, 0), found(5, 5, 1), found(0, 3, 2)}), HasSubstr("rows [3, 7)"));
  EXPECT_THAT(text({found(0, 6, 0)}), HasSubstr("rows [6, 10)"));
  EXPECT_THAT(text({found(10, 10, 0)}), HasSubstr("rows [0, 10)"));
}

// Of a job with many ranks each gives its rows: this test took a minute where every run was compared with every other.
TEST(ChooseRuns, OfManyRanks) {
  constexpr std::int64_t kRanks = 1 << 18;
  std::vector<FoundRun> runs;
  for (std::int64_t r = 0; r < kRanks; ++r) runs.push_back(found(2 * r, 2 * r + 2, r));
  std::vector<std::string> missing;
  EXPECT_EQ(choose_runs(arrays_of({2 * kRanks}), runs, missing), runs);
}

}  // namespace
}  // namespace mica::fsdp
