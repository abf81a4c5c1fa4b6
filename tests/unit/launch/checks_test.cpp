// SPDX-License-Identifier: Apache-2.0
// What the checks of a start make of what ranks say: where they speak, and where a healthy job must not be disturbed.
#include "mica/launch/checks.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"

namespace mica::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Rank i with the i-th words, two ranks a node.
std::vector<RankWords> two_a_node(const std::vector<std::string>& words) {
  std::vector<RankWords> all;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string host = "node" + std::to_string(i / 2);
    all.push_back({static_cast<int>(i), host, host + "/boot", words[i]});
  }
  return all;
}

/// The one finding; empty: none.
std::string found(const Check& check, const std::vector<std::string>& words, Finding::Kind kind) {
  const std::vector<Finding> findings = check.judge(two_a_node(words));
  EXPECT_LE(findings.size(), 1u);
  if (findings.empty()) return "";
  EXPECT_EQ(findings[0].kind, kind);
  return findings[0].text;
}

TEST(Clocks, AMinuteApartIsTold) {
  const auto of = [](const std::vector<std::string>& words) { return found(clocks(), words, Finding::Kind::warning); };
  EXPECT_EQ(of({"1000", "1059", "1001", "1000"}), "");
  EXPECT_THAT(of({"1000", "1000", "1000", "11800.5"}),
              StartsWith("the clock of rank 3 (node1) is 3.0 hours ahead of that of rank 0 (node0)"));
  EXPECT_THAT(of({"5000", "5001", "5000", "4899"}), StartsWith("the clock of rank 3 (node1) is 101 s behind that of rank 0 (node0)"));
  EXPECT_THAT(of({"1000", "2000"}), StartsWith("the clock of rank 1 (node0) is 17 minutes ahead of that of rank 0 (node0)"));
  EXPECT_EQ(of({"7"}), "");
}

TEST(Clocks, TheLookIsTheTime) {
  const double before = static_cast<double>(std::time(nullptr));
  const double seen = std::stod(clocks().look());
  EXPECT_GE(seen, before);
  EXPECT_LE(seen, before + 60);
}

TEST(SameArguments, NamesTheFlagsThatDiffer) {
  const auto words = [](const std::vector<std::string>& arguments) { return same_arguments(arguments).look(); };
  const auto of = [](const std::vector<std::string>& all) { return found(same_arguments({}), all, Finding::Kind::error); };
  const std::string plain = words({"x.cfg", "--optim.lr=1"});
  EXPECT_EQ(of({plain, plain, plain}), "");
  EXPECT_THAT(of({plain, plain, words({"x.cfg", "--optim.lr=2", "--check"})}),
              StartsWith("rank 2 (node1) was started with --optim.lr=2 --check, but rank 0 (node0) with --optim.lr=1: give all ranks"));
  EXPECT_THAT(of({plain, words({"x.cfg"})}),
              StartsWith("rank 1 (node0) was started with none of these, but rank 0 (node0) with --optim.lr=1:"));
  EXPECT_NE(of({words({"a b"}), words({"a", "b"})}), "") << "one argument is not two";
  EXPECT_NE(of({words({"a", "b"}), words({"b", "a"})}), "") << "a later flag wins over an earlier one";
}

TEST(SameValue, NamesTheRankAndBothValues) {
  const Check check = same_value(
      "data.val", [] { return std::string("5 tokens"); }, "copy it");
  EXPECT_EQ(check.look(), "5 tokens");
  EXPECT_EQ(found(check, {"a", "a"}, Finding::Kind::error), "");
  EXPECT_EQ(found(check, {"a", "a", "b", "b"}, Finding::Kind::error),
            "data.val is not the same on all ranks: rank 2 (node1) sees b, but rank 0 (node0) sees a: copy it");
}

TEST(SharedMemory, TooLittleForTheRanksOfANodeIsTold) {
  constexpr std::int64_t kMiB = 1 << 20;
  const auto words = [](std::int64_t all, std::int64_t left) { return std::to_string(all) + " " + std::to_string(left); };
  const auto of = [](const std::vector<std::string>& all) { return found(shared_memory(), all, Finding::Kind::warning); };
  const std::string large = words(64 * kMiB, 50 * kMiB);
  EXPECT_EQ(of({large, large, large}), "");
  EXPECT_EQ(of({words(8 * kMiB, 2 * kMiB), words(8 * kMiB, 2 * kMiB)}), "");
  EXPECT_THAT(of({large, large, words(8 * kMiB - 1, 8 * kMiB - 1), large}),
              AllOf(StartsWith("/dev/shm of node1 has 8.0 MiB, 8.0 of them free, for 2 ranks"), HasSubstr("--shm-size")));
  EXPECT_THAT(of({words(64 * kMiB, 2 * kMiB - 1), large}), StartsWith("/dev/shm of node0 has 64.0 MiB, 2.0 of them free, for 2 ranks"));
  EXPECT_EQ(of({words(kMiB, kMiB)}), "") << "one rank sends to nobody on its node";
  EXPECT_EQ(of({"0 0", "0 0"}), "") << "not to be seen";
}

/// What a rank sees whose best times are these, in ms, and whose usual ones are as many times as long.
std::string times(double product, double copy, double usual = 1) {
  return fmt::format("{} {} {} {}", product, product * usual, copy, copy * usual);
}

TEST(NodeSpeed, OnlyANodeFarFromTheOthersIsTold) {
  const auto of = [](const std::vector<std::string>& all) { return found(node_speed(), all, Finding::Kind::warning); };
  EXPECT_EQ(of({times(10, 10), times(11, 9), times(29, 26), times(31, 31)}), "") << "less than three times";
  EXPECT_EQ(of({times(10, 10), times(11, 9), times(90, 90), times(12, 12)}), "") << "one rank of it had to wait for a core";
  EXPECT_EQ(of({times(10, 10), times(90, 90)}), "") << "one node";
  EXPECT_EQ(of({times(10, 10, 4), times(12, 9, 4), times(33, 31), times(35, 40)}), "") << "the others were quick for a moment only";
  EXPECT_THAT(of({times(10, 10, 2), times(11, 9), times(43, 10, 5), times(34, 10, 5)}),
              AllOf(StartsWith("node1 (rank 2) took 34 ms for products that the other nodes do in 11 ms"), HasSubstr("--exclude=node1")));
  EXPECT_THAT(of({times(10, 50), times(10, 60), times(10, 9), times(10, 10), times(11, 10), times(12, 12)}),
              StartsWith("node0 (rank 0) took 50 ms for copies of memory that"));
  EXPECT_EQ(of({times(10, 40), times(10, 40), times(10, 10)}), "") << "one rank has the memory for itself";
  EXPECT_THAT(of({times(40, 40), times(40, 40), times(10, 10)}), StartsWith("node0 (rank 0) took 40 ms for products"));
  EXPECT_TRUE(node_speed().asks_twice);
}

TEST(SharedFolder, SaysWhatARankSees) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(shared_folder(folder.path(), [] { return true; }).look(), "");
  int looks = 0;
  EXPECT_EQ(shared_folder(folder.path(), [&] { return ++looks == 5; }).look(), "") << "a network file system shows files late";
  EXPECT_EQ(shared_folder(folder.path(), [] { return false; }).look(), "another folder of that name, without rank 0's files");
  EXPECT_EQ(shared_folder(folder / "none", [] { return true; }).look(), "No such file or directory");
  const Check check = shared_folder("/r", [] { return true; });
  EXPECT_EQ(found(check, {"", ""}, Finding::Kind::error), "");
  EXPECT_THAT(found(check, {"", "", "gone", ""}, Finding::Kind::error),
              StartsWith("run folder /r is not one folder for all ranks: on rank 2 (node1): gone; choose a folder"));
  EXPECT_THAT(found(check, {"", "", "gone", "gone"}, Finding::Kind::error), HasSubstr("on rank 2 (node1) and 1 more: gone;"));
}

}  // namespace
}  // namespace mica::launch
