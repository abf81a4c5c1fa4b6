// SPDX-License-Identifier: Apache-2.0
#include "mica/train/metrics.hpp"

#include <cmath>
#include <csignal>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "mica/io/atomic_file.hpp"

#include "support/temporary_folder.hpp"

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
  EXPECT_THAT(lines_of(path),
              ElementsAre(R"({"event":"step","step":4})", R"({"event":"resumed","from":4})",
                          R"({"event":"resumed","from":4,"checkpoint":"x/step-00000004","ranks":3,"set_aside":"x/set-aside-1"})"));
}

// JSON has no such numbers: a diverged run's rows are still rows.
TEST(MetricsFile, NumbersThatJsonLacksAreTexts) {
  const TemporaryFolder folder;
  MetricsFile metrics(folder / "metrics.jsonl", [](const std::string& text) { FAIL() << text; });
  for (const double loss : {std::nan(""), HUGE_VAL, -HUGE_VAL}) metrics.write_eval(1, loss);
  EXPECT_THAT(lines_of(folder / "metrics.jsonl"),
              ElementsAre(HasSubstr(R"("val_loss":"nan")"), HasSubstr(R"("val_loss":"inf")"), HasSubstr(R"("val_loss":"-inf")")));
}

// A limit on the size of files stands for a full disk: the run goes on, no row is half there, and it is said once.
TEST(MetricsFile, AFullDiskCostsRowsAndNotTheRun) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  std::vector<std::string> told;
  MetricsFile metrics(path, [&](const std::string& text) { told.push_back(text); });
  metrics.write_eval(1, 5.0);
  const std::string first = io::read_file(path);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{static_cast<rlim_t>(first.size()) + 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  metrics.write_eval(2, 4.0);
  metrics.write_eval(3, 3.0);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(io::read_file(path), first);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], HasSubstr("metrics.jsonl"));
  metrics.write_eval(4, 2.0);
  EXPECT_THAT(lines_of(path), ElementsAre(R"({"event":"eval","step":1,"val_loss":5.0})", R"({"event":"eval","step":4,"val_loss":2.0})"));
}

}  // namespace
}  // namespace mica::train
