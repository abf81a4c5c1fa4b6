// SPDX-License-Identifier: Apache-2.0
#include "mica/core/log.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "mica/core/error.hpp"

namespace mica {
namespace {

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Logger, WritesToTheTerminalAndTheFile) {
  const std::string path = ::testing::TempDir() + "mica_log_test." + std::to_string(getpid());
  testing::internal::CaptureStderr();
  {
    const Logger terminal = Logger::to_stderr(LogLevel::info, "rank 3");
    const Logger log = terminal.with_file(path);
    terminal.info("terminal only");
    log.debug("below the level {}", 1);
    log.info("step {}", 2);
    log.warn("careful");
  }
  const std::string expected = "[rank 3] step 2\n[rank 3] warning: careful\n";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[rank 3] terminal only\n" + expected);
  EXPECT_EQ(text_of(path), expected);
  std::filesystem::remove(path);
}

TEST(Logger, OnlyWhatReachesItsLevelIsWritten) {
  testing::internal::CaptureStderr();
  const Logger strict = Logger::to_stderr(LogLevel::warn, "");
  strict.info("below");
  strict.warn("at");
  const Logger open = Logger::to_stderr(LogLevel::debug, "");
  open.debug("all");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: at\nall\n");
}

TEST(Logger, TheDefaultOneIsSilent) {
  testing::internal::CaptureStderr();
  const Logger log;
  log.warn("nobody hears");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Logger, AFullDiskIsToldOnceAndEndsNothing) {
  testing::internal::CaptureStderr();
  const Logger log = Logger::to_stderr(LogLevel::info, "").with_file("/dev/full");
  log.info("one");
  log.info("two");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "one\nmica: warning: cannot write to /dev/full: No space left on device; lines of the log are lost\ntwo\n");
}

TEST(Logger, AFileThatCannotBeOpenedIsTheUsersMistake) {
  EXPECT_THROW((void)Logger().with_file("/proc/no/such/folder/log.txt"), ConfigError);
}

}  // namespace
}  // namespace mica
