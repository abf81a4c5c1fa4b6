// SPDX-License-Identifier: Apache-2.0
// Starts without progress are counted in the run's folder.
#include "../../../src/train/start_record.hpp"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

#include "support/temporary_folder.hpp"

namespace mica::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// "" when the start is let through.
std::string begin(const std::string& run, std::int64_t step, const std::string& config = "config") {
  try {
    StartRecord(run).begin(step, config);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::runtime_failure);
    return error.what();
  }
}

TEST(StartRecord, TheThirdStartInARowFromOneStepIsStoppedAndThenTheCountBeginsAnew) {
  const test::TemporaryFolder run;
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(begin(run.path(), 40), "");
    EXPECT_EQ(begin(run.path(), 40), "");
    EXPECT_THAT(begin(run.path(), 40), AllOf(HasSubstr("makes no progress"), HasSubstr("after step 40"), HasSubstr(run.path() + "/log.txt"),
                                             HasSubstr("start the same command again")));
  }
}

TEST(StartRecord, ProgressAnEarlierStepAndAnotherConfigBeginTheCountAnew) {
  const test::TemporaryFolder run;
  for (const std::int64_t step : {0, 0, 1, 1, 7, 7, 4, 4}) EXPECT_EQ(begin(run.path(), step), "") << step;
  EXPECT_EQ(begin(run.path(), 4, "mended"), "");
  EXPECT_EQ(begin(run.path(), 4, "mended"), "");
  EXPECT_THAT(begin(run.path(), 4, "mended"), HasSubstr("makes no progress"));
}

TEST(StartRecord, ARefusedStartDoesNotCount) {
  const test::TemporaryFolder run;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(begin(run.path(), 3), "");
    StartRecord(run.path()).withdraw();
  }
  EXPECT_EQ(begin(run.path(), 3), "");
  EXPECT_EQ(begin(run.path(), 3), "");
  EXPECT_THAT(begin(run.path(), 3), HasSubstr("makes no progress"));
  StartRecord(run.path()).withdraw();  // there is none
  EXPECT_FALSE(std::filesystem::exists(run / "starts.json"));
}

// Its checkpoints may be deleted and the same command started again.
TEST(StartRecord, ARunThatIsDoneBeginsTheCountAnew) {
  const test::TemporaryFolder run;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(begin(run.path(), 0), "");
    StartRecord(run.path()).remove();
  }
}

TEST(StartRecord, ADamagedFileOnlyLosesTheCount) {
  const test::TemporaryFolder run;
  for (const char* text : {"", "{", "[]", "{\"step\": 3}", "{\"step\": -1, \"starts\": 2, \"config_crc32c\": \"\"}"}) {
    std::ofstream(run / "starts.json") << text;
    EXPECT_EQ(begin(run.path(), 3), "") << text;
  }
}

}  // namespace
}  // namespace mica::train
