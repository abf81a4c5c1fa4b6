#include "mica/comm/agree.hpp"

#include <typeinfo>

#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"
#include "testing/local_group.hpp"

namespace mica {
namespace {

TEST(Agree, GathersTextsOfDifferentLengths) {
  for (const int ranks : {1, 2, 5}) {
    run_local_ranks(ranks, [&](auto world) {
      const auto stream = make_cpu_stream("compute", StreamMode::threaded);
      const auto text = [](int rank) { return std::string(static_cast<std::size_t>(rank * 3), static_cast<char>(rank)); };
      const std::vector<std::string> all = gather_strings(*world, *stream, "test", text(world->rank()));
      ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(all[static_cast<std::size_t>(rank)], text(rank));
      for (const std::string& each : gather_strings(*world, *stream, "test", "")) EXPECT_EQ(each, "");
    });
  }
}

TEST(Agree, EveryRankThrowsTheLowestFailingRanksError) {
  run_local_ranks(4, [](auto world) {
    const auto stream = make_cpu_stream("compute", StreamMode::inlined);
    agree(*world, *stream, "test", [] {});
    EXPECT_EQ(test::error_of<ConfigError>([&] {
                agree(*world, *stream, "test", [&] {
                  require<ConfigError>(world->rank() != 2, "two is wrong");
                  require(world->rank() != 3, "three is wrong");
                });
              }),
              "rank 2: two is wrong");
    const auto other = [&] { agree(*world, *stream, "test", [&] { require(world->rank() != 0, "zero is wrong"); }); };
    EXPECT_THROW(other(), Error);
    EXPECT_EQ(test::error_of<Error>(other), "rank 0: zero is wrong");
  });
}

template <class E>
void expect_to_stay_itself(ExitCode exit_code) {
  run_local_ranks(3, [&](auto world) {
    const auto stream = make_cpu_stream("compute", StreamMode::inlined);
    try {
      agree(*world, *stream, "test", [&] {
        if (world->rank() == 1) throw E("one is wrong");
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(typeid(error), typeid(E));
      EXPECT_EQ(std::string(error.what()), "rank 1: one is wrong");
      EXPECT_EQ(error.exit_code(), exit_code);
    }
  });
}

// The exit status of the job is that of the error, not of having heard of it.
TEST(Agree, AnErrorKeepsItsType) {
  expect_to_stay_itself<Error>(ExitCode::runtime_failure);
  expect_to_stay_itself<ConfigError>(ExitCode::user_mistake);
  expect_to_stay_itself<CheckpointError>(ExitCode::user_mistake);
  expect_to_stay_itself<IoError>(ExitCode::runtime_failure);
  expect_to_stay_itself<MpiError>(ExitCode::runtime_failure);
  expect_to_stay_itself<CudaError>(ExitCode::runtime_failure);
  expect_to_stay_itself<NcclError>(ExitCode::runtime_failure);
  expect_to_stay_itself<Hdf5Error>(ExitCode::runtime_failure);
  expect_to_stay_itself<DesyncError>(ExitCode::runtime_failure);
}

}  // namespace
}  // namespace mica
