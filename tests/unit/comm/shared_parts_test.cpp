// SPDX-License-Identifier: Apache-2.0
// Memory side by side on ranks that are threads; tests/mpi/comm has processes.
#include "mica/comm/shared_parts.hpp"

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/comm/process_group.hpp"
#include "mica/core/error.hpp"

#include "support/shared_parts_checks.hpp"
#include "testing/local_group.hpp"

namespace mica {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

using World = std::unique_ptr<ProcessGroup>;
constexpr LocalOptions kShares{.shares_memory = true};
constexpr auto kRole = MemoryRole::sharded_param;

std::string error_of(Stream& stream) {
  try {
    stream.synchronize();
    return {};
  } catch (const Error& e) {
    return e.what();
  }
}

class SharedMemory : public ::testing::TestWithParam<std::tuple<int, StreamMode>> {};

TEST_P(SharedMemory, EveryRoundIsReadWhole) {
  const auto [num_ranks, mode] = GetParam();
  run_local_ranks(
      num_ranks, [mode = mode](World world) { testing::check_rounds(*world, mode); }, kShares);
}

INSTANTIATE_TEST_SUITE_P(Worlds, SharedMemory,
                         ::testing::Combine(::testing::Values(2, 3, 4), ::testing::Values(StreamMode::threaded, StreamMode::inlined)),
                         [](const auto& p) {
                           return std::to_string(std::get<0>(p.param)) +
                                  (std::get<1>(p.param) == StreamMode::threaded ? "Threaded" : "Inlined");
                         });

TEST(SharedParts, GroupsThatDoNotShareGiveOwnMemory) {
  const auto check = [](const ProcessGroup& group, SharedParts parts, Pool& pool, std::int64_t numel) {
    EXPECT_FALSE(parts.is_shared());
    EXPECT_FALSE(parts.whole);
    EXPECT_EQ(parts.own.numel(), numel);
    EXPECT_EQ(parts.own.data, parts.memory.data());
    EXPECT_EQ(parts.rank, group.rank());
    EXPECT_EQ(pool.stats().current_of(kRole), 4 * numel);
  };
  for (const LocalOptions& options : {LocalOptions{}, kShares}) {
    for (const int num_ranks : {1, 2}) {
      run_local_ranks(
          num_ranks,
          [&](World world) {
            const auto pool = make_cpu_pool();
            const auto stream = make_cpu_stream("compute", StreamMode::inlined);
            EXPECT_EQ(world->shares_memory(), options.shares_memory && num_ranks > 1);
            check(*world, world->allocate_parts(*pool, 0, DType::f32, kRole, *stream), *pool, 0);
            if (!world->shares_memory()) check(*world, world->allocate_parts(*pool, 7, DType::f32, kRole, *stream), *pool, 7);
          },
          options);
    }
  }
}

// What a round's reader may not see is not written before it has released, however late that is.
TEST(SharedParts, AWriterWaitsForALateReader) {
  std::atomic<bool> has_released = false;
  run_local_ranks(
      3,
      [&](World world) {
        const auto pool = make_cpu_pool();
        const auto stream = make_cpu_stream("compute", StreamMode::threaded);
        const SharedParts parts = world->allocate_parts(*pool, 5, DType::f32, kRole, *stream);
        parts.publish(*stream, 1);
        world->wait_for_written(*stream, "h.0", parts, 1);
        if (world->rank() == 1) {
          stream->submit("read", {reads(parts.whole)}, [&] {
            std::this_thread::sleep_for(50ms);
            has_released = true;
          });
        }
        parts.release(*stream, 1);
        world->wait_for_released(*stream, "h.0", parts, 1);
        const bool waits = world->rank() != 1;  // a reader does not wait for itself
        stream->submit("write", {writes(parts.own)}, [&, waits] { EXPECT_TRUE(!waits || has_released); });
        stream->synchronize();
        EXPECT_EQ(world->counts().of(Collective::wait_for_written), 1);
        EXPECT_EQ(world->counts().of(Collective::wait_for_released), 1);
        EXPECT_EQ(std::accumulate(world->counts().bytes.begin(), world->counts().bytes.end(), std::int64_t{0}), 0);
        EXPECT_GT(world->busy_ms(), waits ? 20 : 0) << "waiting is time that communication takes";
      },
      kShares);
}

TEST(SharedParts, AReaderWaitsForALateWriter) {
  for (const int late : {0, 2}) {
    std::atomic<bool> has_written = false;
    run_local_ranks(
        3,
        [&](World world) {
          const auto pool = make_cpu_pool();
          const auto stream = make_cpu_stream("compute", StreamMode::threaded);
          const SharedParts parts = world->allocate_parts(*pool, 5, DType::f32, kRole, *stream);
          if (world->rank() == late) {
            stream->submit("write", {writes(parts.own)}, [&] {
              std::this_thread::sleep_for(50ms);
              has_written = true;
            });
          }
          parts.publish(*stream, 1);
          world->wait_for_written(*stream, "h.0", parts, 1);
          stream->submit("read", {reads(parts.whole)}, [&] { EXPECT_TRUE(has_written); });
          stream->synchronize();
        },
        kShares);
  }
}

// Ranks with more and fewer visits write all ranges, one after another and always in the same order.
TEST(SharedParts, MembersWriteInTurns) {
  constexpr int kCalls = 20;
  for (const int num_ranks : {2, 3, 5}) {
    const auto visits_of = [](int rank, int call) { return 1 + (rank + call) % 3; };
    std::vector<std::vector<int>> writers(static_cast<std::size_t>(num_ranks)), expected = writers;
    for (int range = 0; range < num_ranks; ++range) {
      for (int call = 0; call < kCalls; ++call) {
        for (int visit = 0; visit < 3; ++visit) {
          for (int turn = 0; turn < num_ranks; ++turn) {
            const int rank = (range - turn + num_ranks) % num_ranks;
            if (visit < visits_of(rank, call)) expected[static_cast<std::size_t>(range)].push_back(rank);
          }
        }
      }
    }
    run_local_ranks(
        num_ranks,
        [&](World world) {
          const auto pool = make_cpu_pool();
          const auto stream = make_cpu_stream("compute", StreamMode::threaded);
          const SharedParts parts = world->allocate_parts(*pool, 1, DType::f32, kRole, *stream);
          for (int call = 0; call < kCalls; ++call) {
            const std::uint64_t base = static_cast<std::uint64_t>(call) * PartTurn::kTurnsOfACall;
            for (int visit = 0; visit < visits_of(world->rank(), call); ++visit) {
              for (int turn = 0; turn < num_ranks; ++turn) {
                const PartTurn mine{.base = base, .visit = visit, .turn = turn, .rank = world->rank(), .num_ranks = num_ranks};
                world->wait_for_turn(*stream, "head", parts, mine);
                stream->submit("write", {}, [&, range = mine.range(), rank = world->rank()] {
                  writers[static_cast<std::size_t>(range)].push_back(rank);
                  std::this_thread::sleep_for(std::chrono::microseconds(rank * 37 % 50));
                });
                parts.publish(*stream, mine.number());
              }
            }
            parts.publish(*stream, base + PartTurn::kTurnsOfACall);
          }
          world->wait_for_written(*stream, "head", parts, kCalls * PartTurn::kTurnsOfACall);
          stream->synchronize();
        },
        kShares);
    EXPECT_EQ(writers, expected) << num_ranks << " ranks";
  }
}

// A wait that nobody will end is named, and an abort ends it.
TEST(SharedParts, AbortEndsWaits) {
  for (const bool for_written : {true, false}) {
    run_local_ranks(
        2,
        [for_written](World world) {
          const auto other = world->duplicate("other");
          const auto pool = make_cpu_pool();
          const auto stream = make_cpu_stream("compute", StreamMode::threaded);
          const SharedParts parts = world->allocate_parts(*pool, 3, DType::f32, kRole, *stream);
          if (world->rank() == 0) {
            const auto wait = [&] {
              for_written ? world->wait_for_written(*stream, "h.7", parts, 1) : world->wait_for_released(*stream, "h.7", parts, 1);
            };
            const std::string name = for_written ? "wait_for_written" : "wait_for_released";
            wait();
            const Event end = stream->record();
            std::this_thread::sleep_for(30ms);
            EXPECT_FALSE(end.is_complete());
            EXPECT_THAT(world->describe_pending(), HasSubstr("#1 " + name + " 'h.7' (0 bytes) running"));
            world->abort("rank 1 does not answer");
            EXPECT_THAT(error_of(*stream), AllOf(HasSubstr(name + " 'h.7'"), HasSubstr("rank 1 does not answer")));
            stream->drain_and_clear_error();
            wait();
            EXPECT_THAT(error_of(*stream), HasSubstr("rank 1 does not answer"));
            stream->drain_and_clear_error();
          }
          other->barrier(*stream, "end");
          stream->synchronize();
        },
        kShares);
  }
}

TEST(SharedParts, ARankThatFailsEndsTheOthersWaits) {
  try {
    run_local_ranks(
        3,
        [](World world) {
          const auto pool = make_cpu_pool();
          const auto stream = make_cpu_stream("compute", StreamMode::threaded);
          const SharedParts parts = world->allocate_parts(*pool, 3, DType::f32, kRole, *stream);
          if (world->rank() == 1) throw Error("rank 1 fell over");
          parts.publish(*stream, 1);
          world->wait_for_written(*stream, "h.0", parts, 1);
          stream->synchronize();
          ADD_FAILURE() << "rank 1 has written nothing";
        },
        kShares);
    ADD_FAILURE() << "expected an exception";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "rank 1 fell over");
  }
}

// Whoever has done its part may go: the wait is for those who have not.
TEST(SharedParts, ARankThatIsDoneMayLeaveWhileOthersWait) {
  std::atomic<bool> has_left = false;
  run_local_ranks(
      3,
      [&](World world) {
        const auto pool = make_cpu_pool();
        const auto stream = make_cpu_stream("compute", StreamMode::threaded);
        const SharedParts parts = world->allocate_parts(*pool, 3, DType::f32, kRole, *stream);
        if (world->rank() == 2) {
          while (!has_left) std::this_thread::yield();
          std::this_thread::sleep_for(30ms);  // rank 0 looks after its peers meanwhile
        }
        parts.release(*stream, 1);
        if (world->rank() == 0) world->wait_for_released(*stream, "h.0", parts, 1);
        stream->synchronize();
        if (world->rank() == 1) {
          world.reset();
          has_left = true;
        }
      },
      kShares);
}

// After a step that was given up a rank whose streams had failed does not hold up the others.
TEST(SharedParts, SettledRoundsHoldNobodyUp) {
  run_local_ranks(
      2,
      [](World world) {
        const auto pool = make_cpu_pool();
        const auto stream = make_cpu_stream("compute", StreamMode::threaded);
        const SharedParts parts = world->allocate_parts(*pool, 3, DType::f32, kRole, *stream);
        if (world->rank() == 0) stream->submit("inject", {}, [] { throw Error("injected"); });
        parts.publish(*stream, 1);
        parts.release(*stream, 1);
        if (world->rank() == 0) {
          EXPECT_EQ(error_of(*stream), "injected");
          stream->drain_and_clear_error();
          parts.settle(1);
        }
        world->wait_for_written(*stream, "h.0", parts, 1);
        world->wait_for_released(*stream, "h.0", parts, 1);
        parts.publish(*stream, 2);
        world->wait_for_written(*stream, "h.0", parts, 2);
        stream->synchronize();
      },
      kShares);
}

TEST(SharedParts, SubgroupsShareAmongThemselves) {
  run_local_ranks(
      4,
      [](World world) {
        const auto pair = world->split(world->rank() / 2, world->rank(), "pair");
        EXPECT_TRUE(pair->shares_memory());
        const auto pool = make_cpu_pool();
        const auto stream = make_cpu_stream("compute", StreamMode::inlined);
        const SharedParts parts = pair->allocate_parts(*pool, 1, DType::f32, kRole, *stream);
        parts.own.as<float>()[0] = static_cast<float>(world->rank());
        parts.publish(*stream, 1);
        pair->wait_for_written(*stream, "h.0", parts, 1);
        const int first = world->rank() / 2 * 2;
        EXPECT_EQ(parts.whole.as<float>()[0], static_cast<float>(first));
        EXPECT_EQ(parts.whole.as<float>()[1], static_cast<float>(first + 1));
        world->barrier(*stream, "end");
        EXPECT_FALSE(world->split(world->rank(), 0, "alone")->shares_memory());
      },
      kShares);
}

}  // namespace
}  // namespace mica
