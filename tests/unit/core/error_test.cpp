// SPDX-License-Identifier: Apache-2.0
#include "mica/core/error.hpp"

#include <cerrno>
#include <new>
#include <system_error>

#include <gtest/gtest.h>

#include "mica/core/error_text.hpp"

namespace mica {
namespace {

TEST(Error, ExitCodesAreThoseOfTheDesign) {
  EXPECT_EQ(static_cast<int>(ExitCode::done), 0);
  EXPECT_EQ(static_cast<int>(ExitCode::differs), 1);
  EXPECT_EQ(static_cast<int>(ConfigError("x").exit_code()), 2);
  EXPECT_EQ(static_cast<int>(CheckpointError("x").exit_code()), 2);
  EXPECT_EQ(static_cast<int>(Error("x").exit_code()), 3);
  EXPECT_EQ(static_cast<int>(IoError("x").exit_code()), 3);
  EXPECT_EQ(static_cast<int>(MpiError("x").exit_code()), 3);
  EXPECT_EQ(static_cast<int>(CudaError("x").exit_code()), 3);
  EXPECT_EQ(static_cast<int>(NcclError("x").exit_code()), 3);
  EXPECT_EQ(static_cast<int>(Hdf5Error("x").exit_code()), 3);
  EXPECT_EQ(static_cast<int>(DesyncError("x").exit_code()), 3);
  EXPECT_EQ(static_cast<int>(ExitCode::requeue), 75);
}

TEST(Error, TheExitCodeSurvivesBeingCaughtAsABase) {
  try {
    throw ConfigError("seen 3, expected 4");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::user_mistake);
    EXPECT_STREQ(error.what(), "seen 3, expected 4");
  }
}

TEST(Error, RequireThrowsTheGivenTypeWithItsText) {
  EXPECT_NO_THROW(require(true, "unused {}", 1));
  EXPECT_THROW(require(false, "plain"), Error);
  try {
    require<ConfigError>(false, "{} does not divide {}", 3, "world");
    FAIL() << "nothing thrown";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "3 does not divide world");
  }
}

TEST(ErrorDeathTest, ABrokenInvariantNamesItselfAndThePlaceAndAborts) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  invariant(true, "nothing");
  EXPECT_EXIT(invariant(false, "two and two make four"), ::testing::KilledBySignal(SIGABRT),
              "mica: error: internal: two and two make four does not hold at .*error_test.cpp:[0-9]+");
}

TEST(Error, StandardExceptionsNameTheLimitsToLookAt) {
  EXPECT_EQ(message_for_user(ConfigError("seen 3")), "seen 3");
  EXPECT_EQ(message_for_user(std::runtime_error("other")), "other");
  EXPECT_NE(message_for_user(std::bad_alloc()).find("ulimit -v"), std::string::npos);
  const std::system_error no_thread(std::make_error_code(std::errc::resource_unavailable_try_again));
  EXPECT_EQ(message_for_user(no_thread), "no thread can be started: Resource temporarily unavailable; see `ulimit -u` and `ulimit -v`");
  EXPECT_EQ(message_for_user(std::system_error(std::make_error_code(std::errc::resource_deadlock_would_occur), "join")),
            "join: Resource deadlock avoided");
  EXPECT_NE(text_of_error(std::bad_alloc()).find("ulimit -v"), std::string::npos) << "also where it travels to other ranks";
}

TEST(Error, ErrnoAsText) { EXPECT_EQ(errno_text(ENOSPC), "No space left on device"); }

}  // namespace
}  // namespace mica
