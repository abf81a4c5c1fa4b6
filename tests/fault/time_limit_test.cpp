// SPDX-License-Identifier: Apache-2.0
// A run saves and ends with status 75 before its time is up: that of its Slurm job, or train.max_hours.

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <iomanip>
#include <map>
#include <sstream>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fault/support/endless_run.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class TimeLimit : public EndlessRun {};

std::string in_seconds(int seconds) { return std::to_string(std::time(nullptr) + seconds); }

TEST_F(TimeLimit, ASlurmJobsEndIsKeptWithTimeToSpare) {
  constexpr int kRanks = 4;
  const std::string end = in_seconds(20);
  const Finished stopped = Child(command(kRanks), {{"SLURM_JOB_END_TIME", end}, {"SLURM_JOB_ID", "7"}}).wait(100);
  EXPECT_LT(std::time(nullptr), std::stoll(end)) << stopped.output;
  EXPECT_THAT(stopped.output, AllOf(HasSubstr("limit    must end by 20"), HasSubstr("(SLURM_JOB_END_TIME)")));
  EXPECT_THAT(stopped.output, HasSubstr("left before the limit (SLURM_JOB_END_TIME)"));
  EXPECT_GT(stopped.seconds, 5) << "it does not end at once";
  expect_saved_and_goes_on(stopped, kRanks);
}

/// The time in "must end by 2030-03-17 18:46:40 UTC".
std::time_t said_end(const std::string& output) {
  constexpr std::string_view kBefore = "must end by ";
  std::tm time{};
  std::istringstream text(output.substr(std::min(output.size(), output.find(kBefore) + kBefore.size())));
  text >> std::get_time(&time, "%Y-%m-%d %H:%M:%S");
  EXPECT_TRUE(text) << output;
  return ::timegm(&time);
}

// With slow steps, and background saves between them that take next to no time. A last step that takes many times as long as those before
// it, since others use the cores, cannot be foreseen: such an attempt is made again.
TEST_F(TimeLimit, MaxHoursAreKeptAlike) {
  const std::vector<std::string> slow{"--train.micro_batch=200", "--train.global_batch=40000", "--checkpoint.async=true",
                                      "--checkpoint.interval_minutes=0.02"};
  std::vector<std::string> flags = slow;
  flags.emplace_back("--train.max_hours=0.004");  // 14.4 s
  Finished stopped;
  bool is_in_time = false;
  for (int attempt = 0; attempt < 3 && !is_in_time; ++attempt) {
    fs::remove_all(run_folder());
    stopped = test::run(command(2, flags), 100);
    is_in_time = std::time(nullptr) <= said_end(stopped.output);
  }
  EXPECT_TRUE(is_in_time) << stopped.output;
  EXPECT_THAT(stopped.output, AllOf(HasSubstr("(train.max_hours)"), HasSubstr("left before the limit (train.max_hours)")));
  EXPECT_THAT(stopped.output, ContainsRegex("a step and (a save|2 saves) may take ([5-9]|[1-9][0-9]) s\n"))
      << "5 s for the end, and a step";
  const std::string before_needed = " may take ";
  const double needed = std::stod(stopped.output.substr(stopped.output.rfind(before_needed) + before_needed.size()));
  EXPECT_GT(stopped.seconds, 14.4 - needed - 1) << "it does not end earlier than it must";
  expect_saved_and_goes_on(stopped, 2, slow);
}

// The start waits 6 s for the owner of the lock.
TEST_F(TimeLimit, MaxHoursBeginWithTheLaunch) {
  fs::create_directories(run_folder());
  write_text(run_folder() + "/run.lock", "of a job elsewhere");
  const Finished run = test::run(command(2, {"--train.max_hours=0.009", "--train.steps=2", "--run.take_over=true"}));
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_THAT(run.output, ContainsRegex(", in [12]?[0-9] s \\(train.max_hours\\)")) << "less than 32 s";
}

TEST_F(TimeLimit, WhatSlurmSaysIsCheckedAndItsJobAloneLimitsNothing) {
  const auto train_with = [&](const std::map<std::string, std::string>& environment) {
    fs::remove_all(run_folder());
    return Child(command(2, {"--train.steps=5"}), environment).wait();
  };
  const Finished job = train_with({{"SLURM_JOB_ID", "7"}});
  EXPECT_EQ(job.status, 0) << job.output;
  EXPECT_THAT(job.output, Not(HasSubstr("limit    ")));
  const Finished past = train_with({{"SLURM_JOB_END_TIME", in_seconds(-100)}});
  EXPECT_EQ(past.status, 0) << past.output;
  EXPECT_THAT(past.output, HasSubstr("SLURM_JOB_END_TIME is ignored"));
  const Finished bad = train_with({{"SLURM_JOB_END_TIME", "tomorrow"}});
  EXPECT_EQ(bad.status, 2) << bad.output;
  EXPECT_THAT(bad.error_lines(), ElementsAre(HasSubstr("SLURM_JOB_END_TIME is 'tomorrow', expected seconds since 1970")));
}

}  // namespace
}  // namespace mica::test
