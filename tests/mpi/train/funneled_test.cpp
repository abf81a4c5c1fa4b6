// SPDX-License-Identifier: Apache-2.0
// An MPI that grants only MPI_THREAD_FUNNELED.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/train/setup.hpp"

#include "support/mpi_test.hpp"

namespace mica::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

StreamMode mode_with(const std::string& streams) {
  const Config config = parse_config({}, {"--mesh.device=cpu", "--mesh.threads=2", "--mesh.streams=" + streams});
  const Device device = Device::make(config, testing::session(), mpi::Communicator::world(), Logger::to_stderr(LogLevel::warn, ""));
  return device.device_mesh->streams().mode;
}

TEST(Funneled, ThreadedStreamsAreRefused) {
  try {
    (void)mode_with("threaded");
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("mesh.streams = threaded"), HasSubstr("does not grant MPI_THREAD_MULTIPLE")));
  }
}

TEST(Funneled, WhereTheyWouldBeChosenTheFirstRankSaysSo) {
  const std::string warning = "nothing is communicated while a rank computes";
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(mode_with("auto"), StreamMode::inlined);
  const bool is_first = mpi::Communicator::world().rank() == 0;
  EXPECT_EQ(::testing::internal::GetCapturedStderr().find(warning) != std::string::npos, is_first) << "a line of the job";
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(mode_with("inline"), StreamMode::inlined);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr(warning))) << "that was asked for";
}

}  // namespace
}  // namespace mica::train
