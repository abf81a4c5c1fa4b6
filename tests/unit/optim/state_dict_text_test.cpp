// SPDX-License-Identifier: Apache-2.0
// What rank 0 tells the others of a state dict comes through as it is, whatever it holds.

#include "../../../src/optim/state_dict_text.hpp"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace mica::optim {
namespace {

TEST(StateDictText, AnyNamesAndNumbersComeThrough) {
  const std::string bytes("a b\n\0\xff\"{", 8);
  OptimStateDict dict;
  dict.state["blocks.0.weight"].tensors = {{"exp_avg", {}}, {"exp_avg_sq", {}}};
  dict.state["blocks.0.weight"].scalars = {{"step", 7}};
  dict.state[bytes].scalars = {{bytes, 0.1}};
  dict.state[""];
  dict.groups.push_back(
      {{"blocks.0.weight", bytes}, {{"lr", 3e-4}, {"eps", 0x1p-1074}, {"most", std::numeric_limits<double>::infinity()}}});
  dict.groups.push_back({{}, {{"none", std::nan("")}}});

  const OptimStateDict read = dict_without_tensors(text_of(dict));
  ASSERT_EQ(read.state.size(), 3U);
  EXPECT_EQ(read.state.at("blocks.0.weight").tensors.size(), 2U);
  EXPECT_TRUE(read.state.at("blocks.0.weight").tensors.contains("exp_avg_sq"));
  EXPECT_EQ(read.state.at("blocks.0.weight").scalars, dict.state["blocks.0.weight"].scalars);
  EXPECT_EQ(read.state.at(bytes).scalars, dict.state[bytes].scalars);
  EXPECT_TRUE(read.state.at("").tensors.empty());
  ASSERT_EQ(read.groups.size(), 2U);
  EXPECT_EQ(read.groups[0].parameters, dict.groups[0].parameters);
  EXPECT_EQ(read.groups[0].options, dict.groups[0].options);
  EXPECT_TRUE(std::isnan(read.groups[1].options.at("none")));
  EXPECT_TRUE(dict_without_tensors(text_of({})).empty());
}

}  // namespace
}  // namespace mica::optim
