// SPDX-License-Identifier: Apache-2.0
// Checks over ranks: everybody comes to the same findings, with two collectives.
#include "mica/launch/launch_checks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

#include "support/pmpi_counter.hpp"
#include "support/temporary_folder.hpp"

namespace mica::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Finds something if the words of the last rank begin with "bad".
Check check_of(const std::function<std::string()>& look, Finding::Kind kind, bool asks_twice = false) {
  return {.name = "test",
          .look = look,
          .judge = [kind](const std::vector<RankWords>& all) -> std::vector<Finding> {
            for (const RankWords& each : all) {
              if (each.words.starts_with("bad")) return {{kind, name_of(each) + " is " + each.words}};
            }
            return {};
          },
          .asks_twice = asks_twice};
}

std::string told(LaunchChecks& checks) {
  ::testing::internal::CaptureStderr();
  checks.tell(Logger::to_stderr(LogLevel::debug, ""));
  return ::testing::internal::GetCapturedStderr();
}

TEST(LaunchChecks, AnErrorIsEveryRanks) {
  const auto world = mpi::Communicator::world();
  const int last = world.num_ranks() - 1;
  LaunchChecks checks(world);
  const testing::MpiCallCounts before = testing::mpi_calls();
  try {
    // Any bytes may be said.
    checks.run({check_of([] { return std::string("3:x\n\0y", 6); }, Finding::Kind::error),
                check_of([&] { return world.rank() == last ? "bad: 1:2" : ""; }, Finding::Kind::error)});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), StartsWith("rank " + std::to_string(last) + " ("));
    EXPECT_THAT(error.what(), HasSubstr("is bad: 1:2"));
    EXPECT_EQ(error.num_sharers(), world.num_ranks());
  }
  EXPECT_EQ((testing::mpi_calls() - before).total(), 2);
  EXPECT_EQ(checks.num_nodes(), 1);
}

TEST(LaunchChecks, ALookThatFailsLeavesNobodyWaiting) {
  const auto world = mpi::Communicator::world();
  const int last = world.num_ranks() - 1;
  const std::string text = test::error_of<ConfigError>([&] {
    LaunchChecks(world).run({check_of(
        [&] {
          require(world.rank() != last, "no such file");
          return std::string();
        },
        Finding::Kind::warning)});
  });
  EXPECT_THAT(text, StartsWith("rank " + std::to_string(last) + " ("));
  EXPECT_THAT(text, HasSubstr("): no such file"));
}

TEST(LaunchChecks, AWarningIsToldOnceByRank0) {
  const auto world = mpi::Communicator::world();
  LaunchChecks checks(world);
  checks.run({check_of([] { return "bad"; }, Finding::Kind::warning)});
  const std::string first = told(checks);
  if (world.rank() == 0) {
    EXPECT_THAT(first, HasSubstr("launch   test "));
    EXPECT_THAT(first, HasSubstr("warning: rank 0 ("));
  } else {
    EXPECT_EQ(first, "");
  }
  EXPECT_EQ(told(checks).find("warning"), std::string::npos);
}

TEST(LaunchChecks, WhatMeasuresTimeIsAskedTwice) {
  const auto world = mpi::Communicator::world();
  LaunchChecks checks(world);
  int looks = 0;
  checks.run({check_of([&] { return ++looks == 1 ? "bad" : ""; }, Finding::Kind::error, true)});
  EXPECT_EQ(looks, 2);
  EXPECT_EQ(told(checks).find("warning"), std::string::npos);
  EXPECT_THROW(checks.run({check_of([] { return "bad"; }, Finding::Kind::error, true)}), ConfigError);
  looks = 1;
  checks.run({check_of([&] { return ++looks == 1 ? "bad" : ""; }, Finding::Kind::error, true)});
  EXPECT_EQ(looks, 2) << "nothing found: nothing asked again";
}

}  // namespace
}  // namespace mica::launch
