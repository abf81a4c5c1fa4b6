// SPDX-License-Identifier: Apache-2.0
// What the operating system can do to a save: kill it anywhere, a full disk, a folder that is read-only.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "mica/checkpoint/async_saver.hpp"
#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/verify.hpp"

#include "support/shared_folder.hpp"
#include "support/temporary_folder.hpp"
#include "unit/checkpoint/saved_model.hpp"

namespace mica::checkpoint {
namespace {

using test::SavedModel;
using test::SharedFolder;
using test::TemporaryFolder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class FaultDeathTest : public ::testing::Test {
 protected:
  FaultDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

void save_on_two_ranks(const std::string& run, std::int64_t step, int salt, const SaveOptions& options) {
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), test::small_units());
    model.fill(salt);
    model.save(run, step, options);
  });
}

/// The newest checkpoint's values are those of fill(salt), on both ranks, and it is sound.
void expect_newest(const std::string& run, std::int64_t step, int salt) {
  const auto newest = newest_complete(run);
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->step, step);
  EXPECT_THAT(verify(newest->path).damage, IsEmpty());
  run_local_ranks(2, [&](auto world) {
    auto world2 = world->duplicate("second");
    SavedModel expected(std::move(world), test::small_units());
    expected.fill(salt);
    SavedModel loaded(std::move(world2), test::small_units());
    loaded.fill(99);
    (void)loaded.load(newest->path);
    EXPECT_EQ(loaded.bits(), expected.bits());
  });
}

struct KillCase {
  std::string_view point;
  bool step_exists;  // an earlier checkpoint of the same step is there
  friend void PrintTo(const KillCase& k, std::ostream* out) { *out << k.point << (k.step_exists ? ", step exists" : ""); }
};

class KillDeathTest : public FaultDeathTest, public ::testing::WithParamInterface<KillCase> {};

TEST_P(KillDeathTest, TheNewestCompleteCheckpointIsAlwaysRight) {
  const KillCase& kill_case = GetParam();
  const SharedFolder folder;
  const std::string& run = folder.path();
  if (!fs::exists(run + "/checkpoints")) {  // not in the child
    save_on_two_ranks(run, 1, 1, {});
    if (kill_case.step_exists) save_on_two_ranks(run, 2, 2, {});
  }
  const SaveOptions options{.keep = 1, .at_point = [&](std::string_view at) {
                              if (at == kill_case.point) ::kill(::getpid(), SIGKILL);
                            }};
  EXPECT_EXIT(save_on_two_ranks(run, 2, 3, options), ::testing::KilledBySignal(SIGKILL), "");
  if (kill_case.point == "after rename") {
    expect_newest(run, 2, 3);
  } else if (kill_case.step_exists) {
    expect_newest(run, 2, 2);
  } else {
    expect_newest(run, 1, 1);
  }
  EXPECT_TRUE(fs::exists(run + "/checkpoints/step-00000001"));  // keep=1 deletes only after the end
  // The next save takes what is left away.
  save_on_two_ranks(run, 2, 4, {.keep = 1});
  expect_newest(run, 2, 4);
  EXPECT_EQ(std::distance(fs::directory_iterator(run + "/checkpoints"), fs::directory_iterator()), 1);
}

std::vector<KillCase> kill_cases() {
  std::vector<KillCase> cases;
  for (const std::string_view point : kSavePoints) {
    if (point != "earlier one moved") cases.push_back({point, false});
    cases.push_back({point, true});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Points, KillDeathTest, ::testing::ValuesIn(kill_cases()), [](const auto& info) {
  std::string name(info.param.point);
  for (char& c : name) c = c == ' ' ? '_' : c;
  return name + (info.param.step_exists ? "_over_the_same_step" : "");
});

bool write_text(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(fd);
  return ok;
}

/// A small tmpfs at `folder` that only this process sees; in a user namespace if it is not root's.
bool mount_small_disk(const std::string& folder, const std::string& bytes) {
  const uid_t uid = ::getuid();
  const gid_t gid = ::getgid();
  if (uid == 0) {
    if (::unshare(CLONE_NEWNS) != 0) return false;
  } else {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    write_text("/proc/self/setgroups", "deny");
    if (!write_text("/proc/self/uid_map", fmt::format("0 {} 1", uid))) return false;
    if (!write_text("/proc/self/gid_map", fmt::format("0 {} 1", gid))) return false;
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", folder.c_str(), "tmpfs", 0, ("size=" + bytes).c_str()) == 0;
}

/// In a process of its own (a death test's): mounts, runs `body`, ends with 0 if it holds, 1 with what it says if not.
[[noreturn]] void on_small_disk(const std::string& folder, const std::string& bytes, const std::function<std::string()>& body) {
  if (!mount_small_disk(folder, bytes)) {
    std::cerr << "cannot mount a tmpfs, neither as root nor in a user namespace: " << errno_text(errno) << "\n";
    std::exit(2);
  }
  std::string problem;
  try {
    problem = body();
  } catch (const std::exception& e) {
    problem = e.what();
  }
  if (!problem.empty()) std::cerr << "problem: " << problem << "\n";
  std::_Exit(problem.empty() ? 0 : 1);
}

/// Fills up `path`, leaving about `bytes`.
void leave_free(const std::string& folder, std::uintmax_t bytes) {
  const std::uintmax_t free = fs::space(folder).available;
  std::ofstream(folder + "/ballast") << std::string(free - bytes, 'x');
}

/// Saves step 1 with room, then step 2 without; both ranks must throw the same IoError and step 1 must stay.
/// @param point  at which the disk fills up; "": before the save
std::string full_disk(const std::string& run, std::uintmax_t bytes_left, std::string_view point = "") {
  const test::Units units{{{"weight", Shape{100, 1000}, true}}};  // 1.2 MB with its state
  std::vector<std::string> texts(2);
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), units);
    model.fill(1);
    model.save(run, 1);
    if (model.comm().rank() == 0 && point.empty()) leave_free(run, bytes_left);
    (void)model.comm().gather_strings("");
    model.fill(2);
    SaveOptions options;
    options.at_point = [&](std::string_view at) {
      if (at == point && model.comm().rank() == 0) leave_free(run, bytes_left);
    };
    try {
      model.save(run, 2, options);
    } catch (const IoError& e) {
      texts[static_cast<std::size_t>(model.comm().rank())] = e.what();
    }
    (void)model.comm().gather_strings("");
    (void)model.load(run + "/checkpoints/step-00000001");
  });
  if (texts[0] != texts[1] || texts[0].empty()) return fmt::format("rank 0 said '{}', rank 1 '{}'", texts[0], texts[1]);
  for (const char* part : {"rank ", run.c_str(), "bytes free", "step-00000002.r0.tmp"}) {
    if (texts[0].find(part) == std::string::npos) return fmt::format("'{}' is not in: {}", part, texts[0]);
  }
  if (texts[0].find('\n') != std::string::npos) return "the error has several lines";
  if (texts[0].find("HDF5 says") != std::string::npos) return "HDF5's words hide the reason: " + texts[0];
  const bool is_told_first = texts[0].find("no room for a checkpoint of 1200000 bytes") != std::string::npos;
  if (is_told_first != point.empty()) return "found too early or too late: " + texts[0];
  if (fs::exists(run + "/checkpoints/step-00000002.r0.tmp")) return "the .tmp is still there";
  if (newest_complete(run)->step != 1) return "step 1 is not the newest any more";
  if (!verify(run + "/checkpoints/step-00000001").damage.empty()) return "step 1 is damaged";
  // With room again the same step is saved.
  fs::remove(run + "/ballast");
  run_local_ranks(2, [&](auto world) {
    SavedModel model(std::move(world), units);
    model.save(run, 2);
  });
  return newest_complete(run)->step == 2 ? "" : "step 2 was not saved with room";
}

// No room at all, for HDF5's metadata only, for one of the two shards, and for all but a page: nothing is written.
TEST_F(FaultDeathTest, ADiskWithoutRoomIsToldBeforeASave) {
  const SharedFolder folder;
  for (const std::uintmax_t left : {0, 8192, 40000, 700000, 1195000}) {
    EXPECT_EXIT(on_small_disk(folder.path(), "4m", [&] { return full_disk(folder.path(), left); }), ::testing::ExitedWithCode(0), "")
        << left;
  }
}

TEST_F(FaultDeathTest, ADiskThatFillsUpUnderASaveLosesNothing) {
  const SharedFolder folder;
  for (const char* point : {"folder made", "metadata written", "shard written", "before manifest"}) {
    EXPECT_EXIT(on_small_disk(folder.path(), "5m", [&] { return full_disk(folder.path(), 0, point); }), ::testing::ExitedWithCode(0), "")
        << point;
  }
}

/// A save in the background meets a disk that somebody fills up when it has come to `point`. Both ranks must throw the
/// same IoError, when they ask; training has gone on; step 1 must stay, and with room again the next save is made.
std::string full_disk_in_the_background(const std::string& run, std::string_view point) {
  const test::Units units{{{"weight", Shape{100, 1000}, true}}};
  std::vector<std::string> texts(2);
  std::string problem;
  run_local_ranks(2, [&](std::unique_ptr<ProcessGroup> world) {
    const auto background = world->duplicate("background");
    const auto stream = make_cpu_stream("background", StreamMode::inlined);
    SavedModel model(std::move(world), units);
    AsyncSaver saver(make_group_comm(*background, *stream), model.weights().pool());
    const int rank = model.comm().rank();
    model.fill(1);
    saver.start(run, model.state(1), model.comm());
    saver.wait();
    model.fill(2);
    SaveOptions options;
    options.at_point = [&](std::string_view at) {
      if (at == point && rank == 0) leave_free(run, 0);
    };
    saver.start(run, model.state(2), model.comm(), options);
    model.fill(3);
    try {
      saver.wait();
    } catch (const IoError& e) {
      texts[static_cast<std::size_t>(rank)] = e.what();
    }
    (void)model.comm().gather_strings("");
    if (rank == 0) {
      if (fs::exists(run + "/checkpoints/step-00000002.r0.tmp")) problem = "the .tmp is still there";
      if (newest_complete(run)->step != 1) problem = "step 1 is not the newest any more";
      if (!verify(run + "/checkpoints/step-00000001").damage.empty()) problem = "step 1 is damaged";
      fs::remove(run + "/ballast");
    }
    (void)model.comm().gather_strings("");
    saver.start(run, model.state(3), model.comm());
    saver.wait();
    const auto saved = model.bits();
    (void)model.load(run + "/checkpoints/step-00000003");
    if (model.bits() != saved) problem = "step 3 does not hold what was saved with room again";
  });
  if (texts[0] != texts[1] || texts[0].empty()) return fmt::format("rank 0 said '{}', rank 1 '{}'", texts[0], texts[1]);
  for (const char* part : {run.c_str(), "bytes free", "step-00000002.r0.tmp"}) {
    if (texts[0].find(part) == std::string::npos) return fmt::format("'{}' is not in: {}", part, texts[0]);
  }
  return problem;
}

// Before the data, and between the shards and what is written after them.
TEST_F(FaultDeathTest, ADiskThatFillsUpUnderABackgroundSaveLosesNothing) {
  const SharedFolder folder;
  for (const char* point : {"folder made", "metadata written", "shard written", "before manifest"}) {
    EXPECT_EXIT(on_small_disk(folder.path(), "5m", [&] { return full_disk_in_the_background(folder.path(), point); }),
                ::testing::ExitedWithCode(0), "")
        << point;
  }
}

/// Somebody makes room between two attempts: the checkpoint is what start() copied.
std::string room_for_a_later_attempt(const std::string& run) {
  const test::Units units{{{"weight", Shape{100, 1000}, true}}};
  std::string problem;
  run_local_ranks(2, [&](std::unique_ptr<ProcessGroup> world) {
    const auto background = world->duplicate("background");
    const auto stream = make_cpu_stream("background", StreamMode::inlined);
    SavedModel model(std::move(world), units);
    AsyncSaver saver(make_group_comm(*background, *stream), model.weights().pool(),
                     Retries{std::vector(600, std::chrono::milliseconds(100)), {}});
    const bool is_main = model.comm().rank() == 0;
    if (is_main) leave_free(run, 100'000);
    (void)model.comm().gather_strings("");
    model.fill(2);
    const auto expected = model.bits();
    saver.start(run, model.state(2), model.comm());
    model.fill(3);
    if (is_main) {
      std::vector<std::string> failed;
      while (failed.empty()) failed = saver.take_failed_attempts();
      fs::remove(run + "/ballast");
      for (const char* part : {"bytes free", "(attempt 1 of 601); the next one is in 0.1 s"}) {
        if (failed[0].find(part) == std::string::npos) problem = fmt::format("'{}' is not in: {}", part, failed[0]);
      }
    }
    saver.wait();
    if (!saver.take_finished()) problem = "no report";
    (void)model.load(run + "/checkpoints/step-00000002");
    if (model.bits() != expected) problem = "the checkpoint does not hold what was copied at the start";
  });
  return problem;
}

TEST_F(FaultDeathTest, ABackgroundSaveIsTriedAgain) {
  const SharedFolder folder;
  EXPECT_EXIT(on_small_disk(folder.path(), "4m", [&] { return room_for_a_later_attempt(folder.path()); }), ::testing::ExitedWithCode(0),
              "");
}

bool is_told(const SaveReport& report, const std::string& text) {
  return std::ranges::any_of(report.notes, [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

/// Nobody, not even root, can delete a folder on which a disk is mounted.
std::string undeletable_leftovers(const std::string& disk) {
  const std::string run = disk + "/run";
  const std::string checkpoints = run + "/checkpoints";
  const auto hold = [&](const std::string& name) {
    const std::string held = checkpoints + "/" + name + "/held";
    fs::create_directories(held);
    return ::mount("tmpfs", held.c_str(), "tmpfs", 0, "size=64k") == 0;
  };
  std::string problem;
  test::with_one_rank(test::small_units(), [&](SavedModel& model) {
    const SaveOptions one{.keep = 1};
    model.save(run, 1, one);
    if (!hold("step-00000001")) return void(problem = "cannot mount");
    const std::string left = "step-00000001.old.tmp";
    if (!is_told(model.save(run, 2, one), left)) problem = "the failed deletion is not told";
    if (!is_told(model.save(run, 3, one), left)) problem = "what is left over is not told";
    fs::rename(checkpoints + "/step-00000003", checkpoints + "/step-00000001");  // step 1 is deleted again, beside what is left of it
    if (!is_told(model.save(run, 4, one), left)) problem = "what is left over is not told later";
    if (std::distance(fs::directory_iterator(checkpoints), {}) != 2) problem = "more is left than what cannot be deleted";
    if (::umount((checkpoints + "/" + left + "/held").c_str()) != 0) problem = "cannot unmount";
    if (!model.save(run, 5, one).notes.empty()) problem = "there is a note on what could be deleted";
    if (std::distance(fs::directory_iterator(checkpoints), {}) != 1) problem = "a leftover stays";
    // Only this save's own folder must be free.
    if (!hold("step-00000006.r0.tmp")) return void(problem = "cannot mount");
    const std::string text = test::error_of<IoError>([&] { model.save(run, 6, one); });
    if (text.find("step-00000006.r0.tmp: an earlier attempt left this folder") == std::string::npos) problem = "said: " + text;
    model.save(run, 7, one);
    if (newest_complete(run)->step != 7) problem = "step 7 was not saved";
  });
  return problem;
}

TEST_F(FaultDeathTest, WhatCannotBeDeletedIsToldAndEndsNoSave) {
  const SharedFolder folder;
  EXPECT_EXIT(on_small_disk(folder.path(), "4m", [&] { return undeletable_leftovers(folder.path()); }), ::testing::ExitedWithCode(0), "");
}

TEST_F(FaultDeathTest, AReadOnlyFolderIsTheUsersToChange) {
  const SharedFolder folder;
  const auto body = [&]() -> std::string {
    const std::string run = folder.path();
    if (::mount(nullptr, run.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0) return "cannot remount read-only";
    std::string text;
    run_local_ranks(2, [&](auto world) {
      SavedModel model(std::move(world), test::small_units());
      try {
        model.save(run, 1);
      } catch (const ConfigError& e) {
        if (model.comm().rank() == 1) text = e.what();
      }
    });
    return text.find("Read-only file system") != std::string::npos && text.find(run) != std::string::npos ? "" : "said: " + text;
  };
  EXPECT_EXIT(on_small_disk(folder.path(), "1m", body), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace mica::checkpoint
