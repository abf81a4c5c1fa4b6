// SPDX-License-Identifier: Apache-2.0
#include "mica/report/follow.hpp"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mica/io/atomic_file.hpp"
#include "mica/train/run_lock.hpp"

#include "support/temporary_folder.hpp"

namespace mica::report {
namespace {

using std::chrono::milliseconds;
using test::error_of;
using test::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::Not;

class Follow : public ::testing::Test {
 protected:
  void add(const std::string& row) { std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << row; }
  void add_step(int step) { add(row_of_step(step, 12300 + step)); }
  static std::string row_of_step(int step, int tokens_per_s) {
    return fmt::format(R"({{"event":"step","step":{},"loss":2.5,"tokens_per_s":{},"step_ms":1000}})"
                       "\n",
                       step, tokens_per_s);
  }
  void lock(const std::string& text) { std::ofstream(folder_ / "run.lock") << text; }

  TemporaryFolder folder_;
};

TEST_F(Follow, TellsHowARunThatHasEndedDid) {
  add(R"({"event":"started","step":0,"steps":100})"
      "\n");
  add_step(40);
  add(R"({"event":"ranks","step":40,"min_ms":700,"median_ms":710,"max_ms":950,"slowest_rank":3})"
      "\n");
  std::ostringstream out;
  EXPECT_EQ(follow_run(folder_.path(), out, {}), ExitCode::done);
  EXPECT_THAT(out.str(), HasSubstr("step     40/100  loss 2.5000  12.3k tokens/s  1000.0 ms/step  left 1 min 0 s"));
  EXPECT_THAT(out.str(), HasSubstr("others wait for rank 3: 950.0 ms of its own per step, median 710.0, minimum 700.0"));
  EXPECT_THAT(out.str(), HasSubstr("no job is training here; the run has done 40 steps"));
}

TEST_F(Follow, ALaunchOnOneRankWaitsForNoOther) {
  const std::string started = R"({"event":"started","step":0,"steps":100})"
                              "\n";
  add(started);
  add_step(40);
  add(R"({"event":"ranks","step":40,"min_ms":700,"median_ms":710,"max_ms":950,"slowest_rank":3})"
      "\n" +
      started);
  add_step(41);
  std::ostringstream out;
  EXPECT_EQ(follow_run(folder_.path(), out, {}), ExitCode::done);
  EXPECT_THAT(out.str(), HasSubstr("step     41/100"));
  EXPECT_THAT(out.str(), Not(HasSubstr("rank 3")));
}

TEST_F(Follow, SaysALineAMeasurementUntilTheJobIsGone) {
  lock("beat 1");
  add(R"({"event":"started","step":0,"steps":3})"
      "\n");
  add_step(1);
  std::ofstream out(folder_ / "out.txt");
  auto followed = std::async(std::launch::async, [&] { return follow_run(folder_.path(), out, {.interval = milliseconds(5)}); });
  const auto wait_for = [&](const std::string& text) {
    while (io::read_file(folder_ / "out.txt").find(text) == std::string::npos) {
      ASSERT_EQ(followed.wait_for(milliseconds(5)), std::future_status::timeout) << "the job is there";
    }
  };
  wait_for("step      1/3");
  add(R"({"event":"step","step":2,"loss":2.5,"tokens_per_s":12345,)");  // half a row
  EXPECT_EQ(followed.wait_for(milliseconds(50)), std::future_status::timeout);
  add("\"step_ms\":1000}\n");
  add_step(3);
  wait_for("step      3/3");
  std::filesystem::remove(folder_ / "run.lock");
  EXPECT_EQ(followed.get(), ExitCode::done);
  EXPECT_THAT(io::read_file(folder_ / "out.txt"), ::testing::AllOf(HasSubstr("step      2/3"), HasSubstr("the run is complete")));
}

// Steps between two readings of the clock have the same times, and the row of ranks comes after them.
TEST_F(Follow, StepsMeasuredTogetherAreOneLine) {
  lock("beat 1");
  add(R"({"event":"started","step":0,"steps":9})"
      "\n");
  std::ofstream out(folder_ / "out.txt");
  auto followed = std::async(std::launch::async, [&] { return follow_run(folder_.path(), out, {.interval = milliseconds(5)}); });
  while (io::read_file(folder_ / "out.txt").empty()) ASSERT_EQ(followed.wait_for(milliseconds(5)), std::future_status::timeout);
  std::string rows;
  for (int step = 1; step <= 4; ++step) rows += row_of_step(step, 1000);
  rows += R"({"event":"ranks","step":4,"min_ms":700,"median_ms":710,"max_ms":950,"slowest_rank":3})"
          "\n";
  for (int step = 5; step <= 8; ++step) rows += row_of_step(step, 2000);
  add(rows);  // one write: one look sees all of it
  while (io::read_file(folder_ / "out.txt").find("step      8/9") == std::string::npos) {
    ASSERT_EQ(followed.wait_for(milliseconds(5)), std::future_status::timeout);
  }
  std::filesystem::remove(folder_ / "run.lock");
  EXPECT_EQ(followed.get(), ExitCode::done);
  const std::string said = io::read_file(folder_ / "out.txt");
  EXPECT_EQ(std::ranges::count(said, '\n'), 4) << said;  // no step yet, two measurements, how it ended
  EXPECT_THAT(said, ::testing::AllOf(HasSubstr("no step yet\nstep      4/9"), HasSubstr("others wait for rank 3")));
}

// A rollback replaces the file by a shorter one. What is left of it was shown; an earlier resume in it is no news.
TEST_F(Follow, ARollBackRepeatsNoLine) {
  lock("beat 1");
  const std::string started = R"({"event":"started","step":0,"steps":9})"
                              "\n",
                    resumed = R"({"event":"resumed","from":1,"checkpoint":"c","ranks":2})"
                              "\n";
  add(started);
  add_step(1);
  std::ofstream out(folder_ / "out.txt");
  auto followed = std::async(std::launch::async, [&] { return follow_run(folder_.path(), out, {.interval = milliseconds(5)}); });
  const auto count = [&](const std::string& text) {
    const std::string shown = io::read_file(folder_ / "out.txt");
    int times = 0;
    for (std::size_t at = 0; (at = shown.find(text, at)) != std::string::npos; ++at) ++times;
    return times;
  };
  const auto wait_for = [&](const std::string& text, int times) {
    while (count(text) < times) {
      ASSERT_EQ(followed.wait_for(milliseconds(5)), std::future_status::timeout) << "the job is there";
    }
  };
  wait_for("step      1/9", 1);
  add(resumed);
  for (const int step : {2, 3}) add_step(step);
  add(R"({"event":"none","text":")" + std::string(1000, 'x') + "\"}\n");  // more than is added later: the file is shorter at each look
  add_step(4);
  wait_for("step      4/9", 1);
  const std::string all = io::read_file(folder_ / "metrics.jsonl");
  io::write_file_atomically(folder_ / "metrics.jsonl", all.substr(0, all.find(R"({"event":"step","step":3)")));
  add(R"({"event":"rolled_back","step":2,"bad_step":4,"what":"loss is nan"})"
      "\n");
  for (const int step : {3, 4, 5}) add_step(step);
  wait_for("step      5/9", 1);
  std::filesystem::remove(folder_ / "run.lock");
  EXPECT_EQ(followed.get(), ExitCode::done);
  for (const int step : {1, 2}) EXPECT_EQ(count(fmt::format("step      {}/9", step)), 1) << step;
  for (const int step : {3, 4}) EXPECT_EQ(count(fmt::format("step      {}/9", step)), 2) << step << ", which was done again";
}

TEST_F(Follow, ALineOnATerminalIsCutToItsWidth) {
  add(R"({"event":"started","step":0,"steps":100})"
      "\n");
  add_step(40);
  std::ostringstream out;
  EXPECT_EQ(follow_run(folder_.path(), out, {.on_terminal = true, .columns = [] { return std::size_t{20}; }}), ExitCode::done);
  EXPECT_THAT(out.str(), HasSubstr("\r\033[Kstep     40/100  lo\n"));
}

TEST_F(Follow, AJobThatIsSilentIsGone) {
  lock("beat 1");
  std::ostringstream out;
  const FollowOptions options{.interval = milliseconds(5), .silent_after = std::chrono::seconds(0)};
  EXPECT_THAT(error_of<Error>([&] { static_cast<void>(follow_run(folder_.path(), out, options)); }), HasSubstr("has been silent for 0 s"));
  EXPECT_THAT(out.str(), HasSubstr("no step yet"));
}

// On the job's host its process is looked at: nobody waits for a heartbeat.
// Its job may be training all the same.
TEST_F(Follow, ALockThatCannotBeReadIsNoEnd) {
  add_step(40);
  std::filesystem::create_symlink("run.lock", folder_ / "run.lock");  // a loop
  std::ostringstream out;
  const FollowOptions options{.interval = milliseconds(5), .silent_after = std::chrono::seconds(0)};
  EXPECT_THAT(error_of<Error>([&] { static_cast<void>(follow_run(folder_.path(), out, options)); }), HasSubstr("has been silent for 0 s"));
}

TEST_F(Follow, AJobOfThisHostThatWasKilledIsAFailure) {
  add_step(7);
  const pid_t job = ::fork();
  if (job == 0) {
    const train::RunLock lock = train::RunLock::acquire(folder_.path());
    ::_exit(lock.is_lost() ? 1 : 0);  // without giving the folder back
  }
  ASSERT_EQ(::waitpid(job, nullptr, 0), job);
  std::ostringstream out;
  const std::string error = error_of<Error>([&] { static_cast<void>(follow_run(folder_.path(), out, {})); });
  EXPECT_THAT(error, HasSubstr(folder_.path() + ": the job has died after step 7"));
  EXPECT_THAT(out.str(), HasSubstr("step      7/"));
}

TEST_F(Follow, ASignalEndsItAndIsNoError) {
  lock("beat 1");
  std::ostringstream out;
  auto followed =
      std::async(std::launch::async, [&] { return follow_run(folder_.path(), out, {.on_terminal = true, .interval = milliseconds(5)}); });
  for (struct sigaction now{}; now.sa_handler == SIG_DFL;) {
    std::this_thread::sleep_for(milliseconds(5));
    ::sigaction(SIGINT, nullptr, &now);
  }
  ::kill(::getpid(), SIGINT);  // once it listens
  EXPECT_EQ(followed.get(), ExitCode::done);
  EXPECT_THAT(out.str(), Not(HasSubstr("silent")));
}

TEST_F(Follow, OnlyARunsFolder) {
  std::ostringstream out;
  EXPECT_THROW(static_cast<void>(follow_run(folder_.path(), out, {})), ConfigError);
  EXPECT_THROW(static_cast<void>(followed_folder({"--follow"})), ConfigError);
  EXPECT_THROW(static_cast<void>(followed_folder({"a", "--json", "--follow"})), ConfigError);
  EXPECT_EQ(followed_folder({"a", "--follow"}), "a");
  EXPECT_EQ(followed_folder({"--follow", "a"}), "a");
}

}  // namespace
}  // namespace mica::report
