// SPDX-License-Identifier: Apache-2.0
#include "mica/train/metrics.hpp"

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"

#include "support/temporary_folder.hpp"
#include "support/unreadable_file.hpp"

namespace mica::train {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(MetricsFile, DropsWhatWillBeDoneAgain) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  std::ofstream(path) << R"({"event":"step","step":4})"
                      << "\n"
                      << R"({"event":"resumed","from":4})"
                      << "\n"
                      << R"({"event":"step","step":5})"
                      << "\n"
                      << R"({"event":"resumed","from":5})"
                      << "\n"
                      << R"({"event":"step","st)";
  copy_later_metrics(path, 4, folder / "later.jsonl");
  EXPECT_THAT(lines_of(folder / "later.jsonl"), ElementsAre(R"({"event":"step","step":5})", R"({"event":"resumed","from":5})"));
  drop_later_metrics(path, 4);
  MetricsFile metrics(path, [](const std::string& text) { FAIL() << text; });
  metrics.write_resumed({.from = 4, .checkpoint = "x/step-00000004", .num_ranks = 3, .set_aside = "x/set-aside-1"});
  EXPECT_THAT(
      lines_of(path),
      ElementsAre(R"({"event":"step","step":4})", R"({"event":"resumed","from":4})",
                  ::testing::StartsWith(
                      R"({"event":"resumed","from":4,"checkpoint":"x/step-00000004","ranks":3,"set_aside":"x/set-aside-1","time":)")));
}

TEST(MetricsFile, AReadThatFailsLosesNoRows) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  drop_later_metrics(path, 4);
  EXPECT_FALSE(std::filesystem::exists(path)) << "there was none";
  test::make_unreadable(path);
  EXPECT_THROW(drop_later_metrics(path, 4), IoError);
  EXPECT_THROW(copy_later_metrics(path, 4, folder / "later.jsonl"), IoError);
  EXPECT_TRUE(std::filesystem::is_socket(path)) << "it was replaced";
}

// JSON has no such numbers: a diverged run's rows are still rows.
TEST(MetricsFile, NumbersThatJsonLacksAreTexts) {
  const TemporaryFolder folder;
  MetricsFile metrics(folder / "metrics.jsonl", [](const std::string& text) { FAIL() << text; });
  for (const double loss : {std::nan(""), HUGE_VAL, -HUGE_VAL}) metrics.write_eval(1, loss, 1);
  EXPECT_THAT(lines_of(folder / "metrics.jsonl"),
              ElementsAre(HasSubstr(R"("val_loss":"nan")"), HasSubstr(R"("val_loss":"inf")"), HasSubstr(R"("val_loss":"-inf")")));
}

// A limit on the size of files stands for a full disk: the run goes on, no row is half there, and it is said once.
TEST(MetricsFile, AFullDiskCostsRowsAndNotTheRun) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  std::vector<std::string> told;
  MetricsFile metrics(path, [&](const std::string& text) { told.push_back(text); });
  metrics.write_eval(1, 5.0, 1);
  const std::string first = io::read_file(path);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{static_cast<rlim_t>(first.size()) + 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  metrics.write_eval(2, 4.0, 1);
  metrics.write_eval(3, 3.0, 1);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(io::read_file(path), first);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], HasSubstr("metrics.jsonl"));
  metrics.write_eval(4, 2.0, 1);
  EXPECT_THAT(lines_of(path), ElementsAre(::testing::StartsWith(R"({"event":"eval","step":1,"val_loss":5.0,)"),
                                          ::testing::StartsWith(R"({"event":"eval","step":4,"val_loss":2.0,)")));
}

// A step's time in parts, which rank the others wait for, when: figures that a report is drawn from.
TEST(MetricsFile, RowsTellPartsOfAStepAndRanks) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsFile metrics(path, [](const std::string& text) { FAIL() << text; });
  metrics.write(
      {.step = 3, .split = StepSplit{.compute_ms = 70, .exposed_comm_ms = 20, .optimizer_ms = 8, .data_ms = 2}, .gflop_per_s = 12.5});
  metrics.write({.step = 4});
  metrics.write_ranks(4, {{.step_ms = 80}, {.step_ms = 95}, {.step_ms = 81}, {.step_ms = 82}});
  metrics.write_ranks(5, std::vector<RankFigures>(1025, RankFigures{.step_ms = 1}));
  plan::BytesByRole planned{};
  planned[static_cast<std::size_t>(MemoryRole::optimizer)] = 4096;
  metrics.write_started(
      {.step = 0, .version = "v", .num_ranks = 4, .last_step = 9, .device = "CPU", .planned = planned, .planned_peak = 5000});
  const std::vector<std::string> lines = lines_of(path);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_THAT(lines[0], HasSubstr(R"("compute_ms":70.0,"exposed_comm_ms":20.0,"optimizer_ms":8.0,"data_ms":2.0,"gflop_per_s":12.5)"));
  EXPECT_THAT(lines[1], ::testing::Not(HasSubstr("compute_ms"))) << "a GPU does not tell";
  EXPECT_THAT(lines[2],
              HasSubstr(R"("min_ms":80.0,"median_ms":81.5,"max_ms":95.0,"slowest_rank":1,"own_ms":[80.0,95.0,81.0,82.0],"time":)"));
  EXPECT_THAT(lines[3], ::testing::Not(HasSubstr("own_ms")));
  EXPECT_THAT(lines[4], HasSubstr(R"("planned_bytes":5000,"planned_by_role":{"optimizer":4096},"time":)"));
}

}  // namespace
}  // namespace mica::train
