// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/host_comm.hpp"

#include <typeinfo>

#include <gtest/gtest.h>

#include "mica/comm/fake_group.hpp"

#include "support/temporary_folder.hpp"
#include "testing/local_group.hpp"

namespace mica {
namespace {

TEST(Agree, GathersTextsOfDifferentLengths) {
  for (const int ranks : {1, 2, 5}) {
    run_local_ranks(ranks, [&](auto world) {
      const auto stream = make_cpu_stream("compute", StreamMode::threaded);
      const auto comm = make_group_comm(*world, *stream);
      const auto text = [](int rank) { return std::string(static_cast<std::size_t>(rank * 3), static_cast<char>(rank)); };
      const std::vector<std::string> all = comm->gather_strings(text(comm->rank()));
      ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(all[static_cast<std::size_t>(rank)], text(rank));
      for (const std::string& each : comm->gather_strings("")) EXPECT_EQ(each, "");
    });
  }
}

TEST(Agree, ExchangesTextsOfDifferentLengths) {
  for (const int ranks : {1, 2, 5}) {
    run_local_ranks(ranks, [&](auto world) {
      const auto stream = make_cpu_stream("compute", StreamMode::threaded);
      const auto comm = make_group_comm(*world, *stream);
      const auto text = [](int from, int to) {
        return std::string(static_cast<std::size_t>(from * to), static_cast<char>(10 * from + to));
      };
      std::vector<std::string> to_each;
      for (int rank = 0; rank < ranks; ++rank) to_each.push_back(text(comm->rank(), rank));
      const std::vector<std::string> from_each = comm->exchange_strings(to_each);
      ASSERT_EQ(from_each.size(), static_cast<std::size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(from_each[static_cast<std::size_t>(rank)], text(rank, comm->rank()));
    });
  }
}

// All ranks' lengths of all texts would be 2 GiB on 16,384 ranks.
TEST(Agree, ExchangedTextsOfManyRanksTakeLittleMemory) {
  constexpr int kRanks = 1000;
  FakeRecorder recorder;
  const auto group = make_fake_group(1, kRanks, &recorder);
  const auto stream = make_cpu_stream("compute", StreamMode::inlined);
  static_cast<void>(make_group_comm(*group, *stream)->exchange_strings(std::vector<std::string>(kRanks, "a")));
  for (const FakeCall& call : recorder.calls) EXPECT_LE(call.bytes, std::int64_t{8} * kRanks) << collective_name(call.kind);
}

TEST(Agree, EveryRankThrowsTheLowestFailingRanksError) {
  run_local_ranks(4, [](auto world) {
    const auto stream = make_cpu_stream("compute", StreamMode::inlined);
    const auto comm = make_group_comm(*world, *stream);
    comm->agree([] {});
    EXPECT_EQ(test::error_of<ConfigError>([&] {
                comm->agree([&] {
                  require<ConfigError>(world->rank() != 2, "two is wrong");
                  require(world->rank() != 3, "three is wrong");
                });
              }),
              "rank 2: two is wrong");
    const auto other = [&] { comm->agree([&] { require(world->rank() != 0, "zero is wrong"); }); };
    EXPECT_THROW(other(), Error);
    EXPECT_EQ(test::error_of<Error>(other), "rank 0: zero is wrong");
  });
}

template <class E>
void expect_to_stay_itself(ExitCode exit_code) {
  run_local_ranks(3, [&](auto world) {
    const auto stream = make_cpu_stream("compute", StreamMode::inlined);
    try {
      make_group_comm(*world, *stream)->agree([&] {
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
  expect_to_stay_itself<DamagedCheckpointError>(ExitCode::user_mistake);
  expect_to_stay_itself<IoError>(ExitCode::runtime_failure);
  expect_to_stay_itself<MpiError>(ExitCode::runtime_failure);
  expect_to_stay_itself<CudaError>(ExitCode::runtime_failure);
  expect_to_stay_itself<NcclError>(ExitCode::runtime_failure);
  expect_to_stay_itself<Hdf5Error>(ExitCode::runtime_failure);
  expect_to_stay_itself<DesyncError>(ExitCode::runtime_failure);
}

class UsersError final : public ConfigError {
 public:
  using ConfigError::ConfigError;
  [[nodiscard]] ExitCode exit_code() const noexcept override { return static_cast<ExitCode>(42); }
};

TEST(Agree, AUsersOwnErrorIsItsBaseElsewhereAndKeepsItsExitStatus) {
  run_local_ranks(3, [](auto world) {
    const auto stream = make_cpu_stream("compute", StreamMode::inlined);
    try {
      make_group_comm(*world, *stream)->agree([&] {
        if (world->rank() == 1) throw UsersError("one is wrong: 7 8");
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()), "rank 1: one is wrong: 7 8");
      EXPECT_EQ(static_cast<int>(error.exit_code()), 42);
      EXPECT_EQ(error.num_sharers(), 3);
    }
  });
}

// A mistake in what all ranks were given, a config, is nobody's in particular.
TEST(Agree, AnErrorThatAllRanksHaveAlikeNamesNone) {
  run_local_ranks(3, [](auto world) {
    const auto stream = make_cpu_stream("compute", StreamMode::inlined);
    const auto comm = make_group_comm(*world, *stream);
    const auto fail = [] { throw ConfigError("all is wrong"); };
    EXPECT_EQ(test::error_of<ConfigError>([&] { comm->agree(fail); }), "all is wrong");
    EXPECT_EQ(test::error_of<ConfigError>([&] {
                (void)comm->all_or_throw([&] {
                  fail();
                  return std::string();
                });
              }),
              "all is wrong");
    // Agreed on twice, named once.
    EXPECT_EQ(test::error_of<Error>([&] { comm->agree([&] { comm->agree([&] { require(world->rank() != 1, "one is wrong"); }); }); }),
              "rank 1: one is wrong");
  });
}

TEST(Agree, ResultsAndErrorsOfRank0ReachEveryRank) {
  run_local_ranks(3, [](auto world) {
    const auto stream = make_cpu_stream("compute", StreamMode::inlined);
    const auto comm = make_group_comm(*world, *stream);
    int calls = 0;
    const auto work = [&] {
      ++calls;
      return std::string("found");
    };
    EXPECT_EQ(comm->from_first_rank(work), "found");
    EXPECT_EQ(comm->from_root(0, work), "found");
    EXPECT_EQ(calls, world->rank() == 0 ? 2 : 0);
    const auto fail = []() -> std::string { throw ConfigError("nothing there"); };
    EXPECT_EQ(test::error_of<ConfigError>([&] { (void)comm->from_first_rank(fail); }), "nothing there");
    EXPECT_EQ(test::error_of<ConfigError>([&] { (void)comm->from_root(0, fail); }), "rank 0: nothing there");
    EXPECT_EQ(
        test::error_of<ConfigError>([&] { (void)comm->from_first_rank_to_each([&]() -> std::vector<std::string> { return {fail()}; }); }),
        "rank 0: nothing there");
  });
}

// As mica-plan has it.
TEST(Agree, TheRanksOfAFakeGroupPassTheSame) {
  const auto group = make_fake_group(1, 3, nullptr);
  const auto stream = make_cpu_stream("compute", StreamMode::inlined);
  const auto comm = make_group_comm(*group, *stream);
  EXPECT_EQ(comm->gather_strings("abc"), (std::vector<std::string>{"abc", "abc", "abc"}));
  EXPECT_EQ(comm->exchange_strings({"a", "bcd", "ef"}), (std::vector<std::string>{"bcd", "bcd", "bcd"}));
  EXPECT_EQ(comm->broadcast_string("abc", 0), "abc");
  EXPECT_EQ(comm->all_or_throw([] { return std::string("done"); }), (std::vector<std::string>{"done", "done", "done"}));
  EXPECT_EQ(test::error_of<ConfigError>([&] { comm->agree([] { throw ConfigError("no such file"); }); }), "no such file");
}

// A job may end in order for an error that all of its ranks throw: not for one that two of them share.
TEST(Agree, AnErrorIsSharedByThoseWhoAgreedOnIt) {
  run_local_ranks(4, [](auto world) {
    const auto stream = make_cpu_stream("compute", StreamMode::inlined);
    const auto pair = world->split(world->rank() / 2, world->rank(), "pair");
    const auto all = make_group_comm(*world, *stream);
    const auto two = make_group_comm(*pair, *stream);
    const auto in_two = [&] { two->agree([&] { require<ConfigError>(world->rank() != 3, "three is wrong"); }); };
    EXPECT_FALSE(all->is_shared(ConfigError("one's own")));
    EXPECT_FALSE(all->is_shared(std::runtime_error("of another type")));
    try {
      in_two();
      EXPECT_LT(world->rank(), 2);
    } catch (const ConfigError& error) {
      EXPECT_TRUE(two->is_shared(error));
      EXPECT_FALSE(all->is_shared(error));
    }
    try {
      all->agree(in_two);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const ConfigError& error) {
      EXPECT_TRUE(all->is_shared(error));
      EXPECT_EQ(std::string(error.what()), "rank 2: rank 1: three is wrong");
    }
  });
}

}  // namespace
}  // namespace mica
