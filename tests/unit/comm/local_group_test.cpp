// SPDX-License-Identifier: Apache-2.0
#include "testing/local_group.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

#include "support/collective_checks.hpp"
#include "testing/checking_stream.hpp"

namespace mica {
namespace {

using ::testing::AllOf;
using testing::Data;
using ::testing::HasSubstr;

constexpr std::array<std::int64_t, 7> kNumels{0, 1, 2, 3, 7, 255, 1030};

using World = std::unique_ptr<ProcessGroup>;

/// The text of the E that run_local_ranks throws.
template <class E>
std::string error_of(int num_ranks, const std::function<void(World)>& body, LocalOptions options = {}) {
  try {
    run_local_ranks(num_ranks, body, options);
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "an exception of another type: " << e.what();
    return {};
  }
  ADD_FAILURE() << "expected an exception";
  return {};
}

class LocalGroup : public ::testing::TestWithParam<std::tuple<int, StreamMode>> {};

TEST_P(LocalGroup, MovesAndFoldsTheRightBits) {
  const auto [num_ranks, mode] = GetParam();
  std::atomic<int> finished{0};
  run_local_ranks(num_ranks, [&, mode = mode](World world) {
    const auto stream = make_cpu_stream("comm", mode);
    testing::check_collectives(*world, *stream, kNumels);
    ++finished;
  });
  EXPECT_EQ(finished, num_ranks);
}

INSTANTIATE_TEST_SUITE_P(Worlds, LocalGroup,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 6), ::testing::Values(StreamMode::threaded, StreamMode::inlined)),
                         [](const auto& p) { return std::to_string(std::get<0>(p.param)) + testing::mode_name(std::get<1>(p.param)); });

TEST(LocalRanks, ManyRanksOnFewCores) {
  constexpr int kRanks = 128;
  run_local_ranks(kRanks, [](World world) {
    const auto stream = make_cpu_stream("comm", StreamMode::inlined);
    testing::check_reduce_scatter(*world, *stream, 3, DType::f32, false);
    testing::check_all_gather(*world, *stream, 5, DType::bf16, true);
    testing::check_all_reduce(*world, *stream, 100, DType::f32, ReduceOp::sum);  // fewer elements than ranks
  });
}

TEST(LocalRanks, TimesOfCollectivesAddUp) {
  run_local_ranks(2, [](World world) {
    const auto stream = make_cpu_stream("comm", StreamMode::inlined);
    if (world->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    world->barrier(*stream, "late");
    const double late = world->busy_ms();
    EXPECT_GT(late, world->rank() == 0 ? 50 : 0);
    world->barrier(*stream, "at once");
    EXPECT_GT(world->busy_ms(), late);
  });
}

TEST(LocalRanks, GroupsOnTwoStreamsAreIndependent) {
  run_local_ranks(3, [](World world) {
    const auto other = world->duplicate("other");
    const auto a = make_cpu_stream("a", StreamMode::threaded);
    const auto b = make_cpu_stream("b", StreamMode::threaded);
    EXPECT_EQ(other->name(), "other");
    std::array<float, 64> x{}, y{};
    // Rank 1 enqueues in another order: only the order within a group counts.
    for (int round = 0; round < 32; ++round) {
      const auto i = static_cast<std::size_t>(round);
      x[i] = static_cast<float>(round * world->rank());
      y[i] = static_cast<float>(-round * world->rank());
      const auto on_a = [&] { world->all_reduce(*a, "x", {&x[i], Shape{1}, DType::f32}, ReduceOp::sum); };
      const auto on_b = [&] { other->all_reduce(*b, "y", {&y[i], Shape{1}, DType::f32}, ReduceOp::sum); };
      if (world->rank() == 1) {
        on_b();
        on_a();
      } else {
        on_a();
        on_b();
      }
    }
    a->synchronize();
    b->synchronize();
    for (int round = 0; round < 32; ++round) {
      EXPECT_EQ(x[static_cast<std::size_t>(round)], static_cast<float>(3 * round));
      EXPECT_EQ(y[static_cast<std::size_t>(round)], static_cast<float>(-3 * round));
    }
    EXPECT_GT(world->busy_ms(), 0);
  });
}

TEST(LocalRanks, SplitOrdersByKeyThenRank) {
  run_local_ranks(5, [](World world) {
    // Colors 0: ranks 0, 2, 4 in reverse order; 1: ranks 1, 3 with equal keys.
    const bool odd = world->rank() % 2 == 1;
    const auto part = world->split(odd ? 1 : 0, odd ? 7 : -world->rank(), "part");
    EXPECT_EQ(part->num_ranks(), odd ? 2 : 3);
    EXPECT_EQ(part->rank(), odd ? world->rank() / 2 : (4 - world->rank()) / 2);
    const auto stream = make_cpu_stream("comm", StreamMode::inlined);
    float sum = static_cast<float>(world->rank());
    part->all_reduce(*stream, "sum", {&sum, Shape{1}, DType::f32}, ReduceOp::sum);
    EXPECT_EQ(sum, odd ? 4.0F : 6.0F);
    // Groups of groups still name ranks of the world.
    const auto pair = part->split(part->rank() == 0 ? 0 : 1, 0, "pair");
    EXPECT_EQ(pair->num_ranks(), odd || part->rank() == 0 ? 1 : 2);
  });
}

TEST(LocalRanks, TheFailingRanksOwnExceptionComesOut) {
  for (const StreamMode mode : {StreamMode::threaded, StreamMode::inlined}) {
    std::array<std::string, 4> seen;
    const auto begin = std::chrono::steady_clock::now();
    const std::string text = error_of<std::out_of_range>(4, [&](World world) {
      const auto other = world->duplicate("other");
      const auto stream = make_cpu_stream("comm", mode);
      float x = 0;
      const TensorView view(&x, Shape{1}, DType::f32);
      world->all_reduce(*stream, "fine", view, ReduceOp::sum);
      stream->synchronize();
      if (world->rank() == 2) throw std::out_of_range("the third rank fell over");
      try {
        (world->rank() == 0 ? other : world)->all_reduce(*stream, "never", view, ReduceOp::sum);
        stream->synchronize();
      } catch (const Error& e) {
        seen[static_cast<std::size_t>(world->rank())] = e.what();
        throw;
      }
    });
    EXPECT_EQ(text, "the third rank fell over");
    for (const std::size_t rank : {0U, 1U, 3U}) {
      EXPECT_THAT(seen[rank], AllOf(HasSubstr("failed"), HasSubstr("all_reduce 'never' of 4 bytes")));
    }
    EXPECT_THAT(seen[0], HasSubstr("rank 2 failed"));  // 1 and 3 may hear of rank 0, which rank 2 took along
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "nobody waited for the stall timeout";
  }
}

TEST(LocalRanks, TheLowestFailingRankWins) {
  const std::string text = error_of<std::runtime_error>(4, [](World world) {
    if (world->rank() == 1) throw std::runtime_error("one");
    if (world->rank() == 3) throw std::runtime_error("three");
  });
  EXPECT_EQ(text, "one");
}

TEST(LocalRanks, ARankThatReturnsEarlyIsNamed) {
  const std::string text = error_of<Error>(3, [](World world) {
    if (world->rank() == 1) return;
    const auto stream = make_cpu_stream("comm", StreamMode::threaded);
    world->barrier(*stream, "meet");
    stream->synchronize();
  });
  EXPECT_THAT(text, AllOf(HasSubstr("rank 1 has left"), HasSubstr("barrier 'meet'")));
}

TEST(LocalRanks, AStallNamesTheMissingRanks) {
  std::atomic<int> gave_up{0};
  const std::string text = error_of<Error>(
      3,
      [&](World world) {
        while (world->rank() == 1 && gave_up < 2) std::this_thread::yield();
        if (world->rank() == 1) return;
        const auto stream = make_cpu_stream("comm", StreamMode::inlined);
        world->barrier(*stream, "meet");
        ++gave_up;
        stream->synchronize();
      },
      LocalOptions{std::chrono::milliseconds(50)});
  EXPECT_THAT(text, AllOf(HasSubstr("barrier 'meet'"), HasSubstr("waited 50 ms for rank(s) 1;")));
}

TEST(LocalRanks, DifferentCallsAreNamed) {
  const auto mismatch = [](const std::function<void(ProcessGroup&, Stream&)>& as_rank_1) {
    return error_of<DesyncError>(2, [&](World world) {
      const auto stream = make_cpu_stream("comm", StreamMode::threaded);
      Data data(4, DType::f32);
      data.fill_as(0);
      if (world->rank() == 1) {
        as_rank_1(*world, *stream);
      } else {
        world->all_reduce(*stream, "grads", data.view(), ReduceOp::sum);
      }
      stream->synchronize();
    });
  };
  Data four(4, DType::f32), six(6, DType::f32), half(4, DType::bf16);
  EXPECT_THAT(mismatch([&](ProcessGroup& g, Stream& s) { g.all_reduce(s, "grads", six.view(), ReduceOp::sum); }),
              AllOf(HasSubstr("rank 0 all_reduce 'grads' of 4 x fp32 (sum)"), HasSubstr("rank 1 all_reduce 'grads' of 6 x fp32 (sum)")));
  EXPECT_THAT(mismatch([&](ProcessGroup& g, Stream& s) { g.all_reduce(s, "other", four.view(), ReduceOp::sum); }), HasSubstr("'other'"));
  EXPECT_THAT(mismatch([&](ProcessGroup& g, Stream& s) { g.all_reduce(s, "grads", half.view(), ReduceOp::sum); }), HasSubstr("bf16"));
  EXPECT_THAT(mismatch([&](ProcessGroup& g, Stream& s) { g.all_reduce(s, "grads", four.view(), ReduceOp::max); }), HasSubstr("(max)"));
  EXPECT_THAT(mismatch([&](ProcessGroup& g, Stream& s) { g.broadcast(s, "grads", four.view(), 0); }), HasSubstr("broadcast"));
}

TEST(LocalRanks, AGroupGoesOnAfterAnAbandonedCollective) {
  run_local_ranks(2, [](World world) {
    const auto stream = make_cpu_stream("comm", StreamMode::threaded);
    float x = 1;
    const TensorView view(&x, Shape{1}, DType::f32);
    stream->submit("inject", {}, [] { throw std::runtime_error("injected on all ranks"); });
    world->all_reduce(*stream, "skipped", view, ReduceOp::sum);
    EXPECT_THROW(stream->synchronize(), std::runtime_error);
    stream->drain_and_clear_error();
    world->all_reduce(*stream, "again", view, ReduceOp::sum);
    stream->synchronize();
    EXPECT_EQ(x, 2.0F);
    const auto entries = world->recorder().entries();
    ASSERT_EQ(entries.size(), 2U);
    EXPECT_EQ(entries[0].state, CollectiveState::skipped);
    EXPECT_EQ(entries[1].state, CollectiveState::done);
  });
}

/// The declared accesses are the real ones: a collective's memory, touched on another stream, is a race unless an event
/// orders the two.
TEST(LocalRanks, CollectivesDeclareTheirMemory) {
  for (const bool ordered : {true, false}) {
    run_local_ranks(2, [ordered](World world) {
      HappensBeforeChecker checker;
      const auto comm = checker.wrap(make_cpu_stream("comm", StreamMode::inlined));
      const auto compute = checker.wrap(make_cpu_stream("compute", StreamMode::inlined));
      Data full(4, DType::f32), other(4, DType::f32), shard(2, DType::f32);
      const auto races_with = [&](TensorView touched, Access::Mode mode, const std::function<void()>& collective) {
        const std::size_t before = checker.violations().size();
        collective();
        if (ordered) compute->wait(comm->record());
        compute->submit("touch", {Access{touched.data, touched.bytes(), mode}}, [] {});
        compute->wait(comm->record());  // whatever comes next is ordered against all of this
        comm->wait(compute->record());
        return checker.violations().size() > before;
      };
      const auto gather = [&] { world->all_gather(*comm, "g", shard.view(), full.view()); };
      const auto reduce = [&] { world->reduce_scatter(*comm, "r", full.view(), shard.view()); };
      const auto swap = [&] { world->all_to_all(*comm, "t", full.view(), other.view()); };
      const auto all = [&] { world->all_reduce(*comm, "a", full.view(), ReduceOp::sum); };
      const auto cast = [&] { world->broadcast(*comm, "b", full.view(), 0); };
      const bool expected = !ordered;
      EXPECT_EQ(races_with(full.view(), Access::Mode::read, gather), expected);
      EXPECT_EQ(races_with(shard.view(), Access::Mode::write, gather), expected);
      EXPECT_EQ(races_with(full.view(), Access::Mode::write, reduce), expected);
      EXPECT_EQ(races_with(shard.view(), Access::Mode::read, reduce), expected);
      EXPECT_EQ(races_with(full.view(), Access::Mode::write, swap), expected);
      EXPECT_EQ(races_with(other.view(), Access::Mode::read, swap), expected);
      EXPECT_EQ(races_with(full.view(), Access::Mode::read, all), expected);
      EXPECT_EQ(races_with(full.view(), Access::Mode::write, cast), expected);
    });
  }
}

TEST(LocalRanks, RefusesNoRanks) {
  EXPECT_THROW(run_local_ranks(0, [](World) {}), ConfigError);
}

}  // namespace
}  // namespace mica
