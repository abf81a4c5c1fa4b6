// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/comm/mpi_group.hpp"
#include "mica/core/error.hpp"

#include "support/collective_checks.hpp"
#include "support/mpi_test.hpp"

namespace mica {
namespace {

TEST(Funneled, StreamsThatCommunicateAreInlined) {
  ASSERT_FALSE(testing::session().has_thread_multiple());
  EXPECT_EQ(comm_stream_mode(testing::session(), StreamMode::threaded), StreamMode::inlined);
  const auto pool = make_cpu_pool();
  const auto group = make_mpi_group(mpi::Communicator::world(), *pool, "world");
  const auto stream = make_cpu_stream("comm", comm_stream_mode(testing::session(), StreamMode::threaded));
  constexpr std::array<std::int64_t, 2> numels{3, 200};
  testing::check_collectives(*group, *stream, numels);
}

TEST(Funneled, AnotherThreadIsRefused) {
  const auto pool = make_cpu_pool();
  const auto group = make_mpi_group(mpi::Communicator::world(), *pool, "world");
  const auto stream = make_cpu_stream("comm", StreamMode::threaded);
  group->barrier(*stream, "meet");
  try {
    stream->synchronize();
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), ::testing::AllOf(::testing::HasSubstr("MPI_THREAD_MULTIPLE"), ::testing::HasSubstr("barrier 'meet'")));
  }
}

}  // namespace
}  // namespace mica
