// SPDX-License-Identifier: Apache-2.0
#include "mica/train/run_lock.hpp"

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mica/core/error.hpp"
#include "mica/io/atomic_file.hpp"

#include "support/temporary_folder.hpp"

namespace mica::train {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what << " is not in " << text;
  return text.replace(at, what.size(), by);
}

/// The lock of a job on another host: this process's, with another boot id.
std::string lock_of_another_host() {
  const TemporaryFolder folder;
  const RunLock lock = RunLock::acquire(folder.path());
  return replaced(replaced(io::read_file(folder / "run.lock"), R"("boot":")", R"("boot":"elsewhere-)"), R"("host":")",
                  R"("host":"node17-)");
}

/// The lock of a job that has ended on this host: its process id has been given to another process since.
std::string lock_of_a_dead_job() {
  const TemporaryFolder folder;
  const RunLock lock = RunLock::acquire(folder.path());
  return replaced(io::read_file(folder / "run.lock"), R"("process_start":")", R"("process_start":"1)");
}

auto time_to_acquire(const TemporaryFolder& folder, const RunLockOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NO_THROW((void)RunLock::acquire(folder.path(), options));
  return std::chrono::steady_clock::now() - begin;
}

void write_lock(const std::string& path, const std::string& text, std::chrono::seconds age = 0s) {
  std::ofstream(path, std::ios::trunc) << text;
  const timespec then{std::time(nullptr) - age.count(), 0};
  const timespec times[2] = {then, then};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

/// In a process of its own; writes 'y' to `ready` when it has the lock, 'n' when it was refused, and then waits for its end.
pid_t acquire_in_a_child(const std::string& folder, const RunLockOptions& options, int ready) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  const auto answer = [&](char text) {
    [[maybe_unused]] const ssize_t n = ::write(ready, &text, 1);
    ::pause();
  };
  try {
    const RunLock lock = RunLock::acquire(folder, options);
    answer('y');
  } catch (const Error&) {
    answer('n');
  }
  ::_exit(0);
}

TEST(RunLock, RefusesAnotherProcessUntilItIsDead) {
  const TemporaryFolder folder;
  const RunLockOptions options{.heartbeat = 100ms};  // a newcomer waits that long for a job that may be just ending
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = acquire_in_a_child(folder.path(), options, ready[1]);
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  EXPECT_THAT(error_of<ConfigError>([&] { (void)RunLock::acquire(folder.path(), options); }),
              AllOf(HasSubstr("in use by another job"), HasSubstr(fmt::format("process {} on host ", child)), HasSubstr("since 20"),
                    HasSubstr("--run.dir")));
  ::kill(child, SIGKILL);
  while (::waitid(P_PID, static_cast<id_t>(child), nullptr, WEXITED | WNOWAIT) != 0) {
  }
  (void)RunLock::acquire(folder.path(), options);  // dead, though nobody has waited for it
  ::waitpid(child, nullptr, 0);
  (void)RunLock::acquire(folder.path(), options);
}

TEST(RunLock, EndsWithItsOwner) {
  const TemporaryFolder folder;
  {
    const RunLock lock = RunLock::acquire(folder.path());
    EXPECT_NO_THROW(lock.check());
    EXPECT_FALSE(lock.is_lost());
    EXPECT_THAT(error_of<ConfigError>([&] { (void)RunLock::acquire(folder.path(), {.heartbeat = 10ms}); }),
                HasSubstr(fmt::format("process {}", ::getpid())));
  }
  EXPECT_EQ(::access((folder / "run.lock").c_str(), F_OK), -1);
}

// A job that is just ending is waited for.
TEST(RunLock, AnOwnerThatEndsMakesWay) {
  const TemporaryFolder folder;
  auto first = std::make_unique<RunLock>(RunLock::acquire(folder.path()));
  std::thread end([&] {
    std::this_thread::sleep_for(50ms);
    first.reset();
  });
  EXPECT_NO_THROW((void)RunLock::acquire(folder.path(), {.heartbeat = 100s}));
  end.join();
}

// A job that follows a killed one waits only if there is another newcomer, which might take the folder at the same time.
TEST(RunLock, ALoneNewcomerTakesADeadJobsFolderAtOnce) {
  const TemporaryFolder folder;
  write_lock(folder / "run.lock", lock_of_a_dead_job());
  EXPECT_LT(time_to_acquire(folder, {.heartbeat = 100s}), 20s);
  write_lock(folder / "run.lock", lock_of_a_dead_job());
  write_lock(folder / "run.lock.node17-1234", "");
  EXPECT_GE(time_to_acquire(folder, {.heartbeat = 400ms}), 100ms);
}

// Files of newcomers elsewhere may be seen late: after three heartbeats of silence, this one waits for a quarter more.
TEST(RunLock, AfterAnOwnerElsewhereOthersAreAlwaysWaitedFor) {
  const TemporaryFolder folder;
  write_lock(folder / "run.lock", lock_of_another_host());
  EXPECT_GE(time_to_acquire(folder, {.heartbeat = 400ms, .take_over = true}), 1300ms);
}

// A process id that was given to another process since is no sign of life.
TEST(RunLock, AnotherProcessWithTheSameIdIsNotTheOwner) {
  const TemporaryFolder folder;
  write_lock(folder / "run.lock", lock_of_a_dead_job());
  EXPECT_NO_THROW((void)RunLock::acquire(folder.path()));
}

TEST(RunLock, AnOwnerElsewhereLivesAsLongAsItWrites) {
  const TemporaryFolder folder;
  const std::string path = folder / "run.lock";
  const std::string text = lock_of_another_host();
  write_lock(path, text);
  std::atomic<bool> stops = false;
  std::thread owner([&] {
    for (int beat = 1; !stops; ++beat) {
      std::this_thread::sleep_for(2ms);
      std::ofstream(path, std::ios::in | std::ios::out) << replaced(text, R"("heartbeat":0)", fmt::format(R"("heartbeat":{})", beat));
    }
  });
  for (const bool takes_over : {false, true}) {
    EXPECT_THAT(
        error_of<ConfigError>([&] { (void)RunLock::acquire(folder.path(), {.heartbeat = 2s, .lost_after = 1h, .take_over = takes_over}); }),
        HasSubstr("on host node17-"))
        << "one that lives is not driven out";
  }
  stops = true;
  owner.join();
}

TEST(RunLock, AnOwnerElsewhereThatIsSilentIsWaitedForThenTakenOver) {
  const auto wait_for = [](const std::string& text) {
    const TemporaryFolder folder;
    write_lock(folder / "run.lock", text);
    std::vector<std::string> told;
    const auto start = std::chrono::steady_clock::now();
    const RunLock lock = RunLock::acquire(
        folder.path(), {.heartbeat = 20ms, .lost_after = 3s, .tell = [&](const std::string& line) { told.push_back(line); }});
    EXPECT_GE(std::chrono::steady_clock::now() - start, 1900ms) << "the file's time has whole seconds";
    ASSERT_EQ(told.size(), 1U);
    EXPECT_THAT(told[0], AllOf(HasSubstr("stopped updating"), HasSubstr("silent for 3 s"), HasSubstr("--run.take_over=true")));
    EXPECT_NO_THROW(lock.check());
  };
  std::vector<std::jthread> waits;  // at once, since each takes 3 s
  for (const std::string& text : {lock_of_another_host(), std::string("what is this"), std::string()}) waits.emplace_back(wait_for, text);
}

TEST(RunLock, TheWaitIsOverWhenTheSilenceIsOldOrTheUserSaysSo) {
  const TemporaryFolder folder;
  const std::string text = lock_of_another_host();
  for (const bool takes_over : {false, true}) {
    write_lock(folder / "run.lock", text, takes_over ? 0s : 7200s);
    int told = 0;
    const RunLock lock = RunLock::acquire(
        folder.path(), {.heartbeat = 20ms, .lost_after = 1h, .take_over = takes_over, .tell = [&](const std::string&) { ++told; }});
    EXPECT_EQ(told, 0);
    EXPECT_NO_THROW(lock.check());
  }
}

TEST(RunLock, AnOwnerThatWasTakenForDeadFindsOut) {
  const TemporaryFolder folder;
  const std::string path = folder / "run.lock";
  const std::string other = lock_of_another_host();
  {
    const RunLock lock = RunLock::acquire(folder.path(), {.heartbeat = 5ms});
    write_lock(path + ".new", other);
    ASSERT_EQ(::rename((path + ".new").c_str(), path.c_str()), 0);
    EXPECT_THAT(error_of<Error>([&] { lock.check(); }), AllOf(HasSubstr("taken the folder over"), HasSubstr("node17-")));
    while (!lock.is_lost()) std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(io::read_file(path), other) << "neither written over nor deleted";
  {
    ::unlink(path.c_str());
    const RunLock lock = RunLock::acquire(folder.path());
    ::unlink(path.c_str());
    EXPECT_THAT(error_of<Error>([&] { lock.check(); }), HasSubstr("the file is gone"));
  }
}

TEST(RunLock, OneOfManyNewcomersGetsIt) {
  // Into an empty folder, and into one with the lock of a process that was killed; at once, since the refused ones wait first.
  struct Race {
    TemporaryFolder folder;
    int ready[2];
    std::vector<pid_t> children;
  };
  Race races[2];
  const auto start = [](Race& race) { race.children.push_back(acquire_in_a_child(race.folder.path(), {.heartbeat = 4s}, race.ready[1])); };
  const auto answer_of = [](Race& race) {
    char answer = 0;
    EXPECT_EQ(::read(race.ready[0], &answer, 1), 1);
    return answer;
  };
  const auto kill_all = [](Race& race) {
    for (const pid_t child : race.children) ::kill(child, SIGKILL);
    for (const pid_t child : race.children) ::waitpid(child, nullptr, 0);
    race.children.clear();
  };
  for (Race& race : races) ASSERT_EQ(::pipe(race.ready), 0);
  start(races[1]);
  ASSERT_EQ(answer_of(races[1]), 'y');
  kill_all(races[1]);
  ASSERT_EQ(::access((races[1].folder / "run.lock").c_str(), F_OK), 0);
  for (int i = 0; i < 6; ++i) {
    for (Race& race : races) start(race);
  }
  for (Race& race : races) {
    int winners = 0;
    for (std::size_t i = 0; i < race.children.size(); ++i) winners += answer_of(race) == 'y';
    EXPECT_EQ(winners, 1);
    kill_all(race);
  }
}

// What others see of a live owner: its lock changes.
TEST(RunLock, TheOwnerWritesToTheLock) {
  const TemporaryFolder folder;
  const RunLock lock = RunLock::acquire(folder.path(), {.heartbeat = 5ms});
  std::string text = io::read_file(folder / "run.lock");
  for (int change = 0; change < 2; ++change) {
    std::string next = text;
    for (int looks = 0; next == text && looks < 10'000; ++looks) {
      std::this_thread::sleep_for(1ms);
      next = io::read_file(folder / "run.lock");
    }
    EXPECT_NE(next, text);
    text = next;
  }
}

TEST(RunLock, AFullDiskLeavesNoLock) {
  const TemporaryFolder folder;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  EXPECT_THROW((void)RunLock::acquire(folder.path()), IoError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(::access((folder / "run.lock").c_str(), F_OK), -1);
}

}  // namespace
}  // namespace mica::train
