// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/mpi_group.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

#include "support/collective_checks.hpp"
#include "support/mpi_test.hpp"
#include "support/pmpi_counter.hpp"

namespace mica {
namespace {

using ::testing::AllOf;
using testing::Data;
using ::testing::HasSubstr;
using testing::mpi_calls;
using testing::MpiCall;
using testing::MpiCallCounts;
using testing::MpiMessage;

constexpr std::int64_t kNever = std::int64_t{1} << 60;

struct Case {
  const char* name;
  StreamMode mode;
  MpiGroupOptions options;
};

class MpiGroup : public ::testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Pool> pool = make_cpu_pool();
  std::unique_ptr<ProcessGroup> make(MpiGroupOptions options = {}) {
    return make_mpi_group(mpi::Communicator::world(), *pool, "world", options);
  }
};

/// Slices around the limits of 1 KiB calls: 64 elements of 4 bytes on 4 ranks, 256 on one.
constexpr std::array<std::int64_t, 11> kNumels{0, 1, 2, 3, 7, 63, 64, 65, 129, 255, 1030};

TEST_P(MpiGroup, MovesAndFoldsTheRightBits) {
  const auto group = make(GetParam().options);
  pool->poison(true);
  const auto stream = make_cpu_stream("comm", GetParam().mode);
  (void)testing::take_largest_mpi_call();
  testing::check_collectives(*group, *stream, kNumels);
  EXPECT_LE(testing::take_largest_mpi_call(), GetParam().options.max_call_bytes);
  EXPECT_EQ(pool->stats().current, 0) << "all staging was given back";
  EXPECT_LE(pool->stats().peak_of(MemoryRole::communication), GetParam().options.staging_bytes);
  EXPECT_EQ(pool->stats().peak, pool->stats().peak_of(MemoryRole::communication));
  EXPECT_EQ(group->num_ranks() > 1, group->busy_ms() > 0);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, MpiGroup,
    ::testing::Values(Case{"threaded", StreamMode::threaded, {}}, Case{"inlined", StreamMode::inlined, {}},
                      Case{"collectives", StreamMode::inlined, {.max_collective_slice_bytes = kNever}},
                      Case{"direct", StreamMode::inlined, {.max_collective_slice_bytes = 0}},
                      Case{"abortable", StreamMode::threaded, {.can_be_aborted = true}},
                      Case{"collectives_1KiB", StreamMode::threaded, {.max_call_bytes = 1024, .max_collective_slice_bytes = kNever}},
                      Case{"direct_1KiB", StreamMode::threaded, {.max_call_bytes = 1024, .max_collective_slice_bytes = 0}},
                      Case{"staging_1KiB", StreamMode::inlined, {.staging_bytes = 1024}},
                      Case{"staging_100B", StreamMode::inlined, {.staging_bytes = 100, .max_collective_slice_bytes = 16}}),
    [](const auto& p) { return p.param.name; });

TEST_F(MpiGroup, ManyBlocksOfTheDefaultSize) {
  const auto group = make();
  const auto stream = make_cpu_stream("comm", StreamMode::threaded);
  testing::check_all_gather(*group, *stream, 300'001, DType::f32, true);
  testing::check_reduce_scatter(*group, *stream, 300'001, DType::f32, false);
  testing::check_reduce_scatter(*group, *stream, 300'001, DType::bf16, true);
  testing::check_all_to_all(*group, *stream, 300'001, DType::bf16);
  testing::check_all_reduce(*group, *stream, 700'001, DType::f32, ReduceOp::sum);
  testing::check_all_reduce(*group, *stream, 700'001, DType::f16, ReduceOp::max);
  EXPECT_EQ(pool->stats().peak, group->num_ranks() == 1 ? 0 : 2 * ((1 << 19) / group->num_ranks() / 2 * 2 * group->num_ranks()));
}

/// [Note: MPI calls of collectives], seen from outside.
TEST_F(MpiGroup, OneCollectiveIsOneMpiCallOfItsKind_OnSeveralRanks) {
  const auto group = make({.max_collective_slice_bytes = kNever});
  const auto stream = make_cpu_stream("comm", StreamMode::threaded);
  const std::int64_t P = 1000;
  Data full(P * group->num_ranks(), DType::f32), other(P * group->num_ranks(), DType::f32), shard(P, DType::f32);
  const auto calls_of = [&](const std::function<void()>& collective) {
    const MpiCallCounts before = mpi_calls();
    collective();
    stream->synchronize();
    return mpi_calls() - before;
  };
  const auto only = [](MpiCall call, std::int64_t n = 1) {
    MpiCallCounts counts;
    counts.calls[static_cast<std::size_t>(call)] = n;
    return counts.calls;
  };
  EXPECT_EQ(calls_of([&] { group->all_gather(*stream, "g", shard.view(), full.view()); }).calls, only(MpiCall::allgather));
  EXPECT_EQ(calls_of([&] { group->reduce_scatter(*stream, "r", full.view(), shard.view()); }).calls, only(MpiCall::alltoall));
  EXPECT_EQ(calls_of([&] { group->all_reduce(*stream, "a", shard.view(), ReduceOp::sum); }).calls, only(MpiCall::allgatherv));
  EXPECT_EQ(calls_of([&] { group->all_to_all(*stream, "t", full.view(), other.view()); }).calls, only(MpiCall::alltoallw));
  const MpiCallCounts large = calls_of([&] { group->all_reduce(*stream, "a", full.view(), ReduceOp::sum); });
  EXPECT_EQ(large.of(MpiCall::alltoallv), 1);
  EXPECT_EQ(large.of(MpiCall::allgatherv), 1);
  EXPECT_EQ(large.total(), 2);
  EXPECT_EQ(calls_of([&] { group->broadcast(*stream, "b", full.view(), 0); }).calls, only(MpiCall::bcast));
  EXPECT_EQ(calls_of([&] { group->barrier(*stream, "m"); }).calls, only(MpiCall::barrier));

  // Calls of at most 1 KiB: 1000 elements in slices of 256 / ranks.
  const auto split = make({.max_call_bytes = 1024, .max_collective_slice_bytes = kNever});
  const std::int64_t slice = 256 / group->num_ranks();
  const std::int64_t num_calls = (P + slice - 1) / slice;
  EXPECT_EQ(calls_of([&] { split->all_gather(*stream, "g", shard.view(), full.view()); }).calls, only(MpiCall::allgather, num_calls));
  EXPECT_EQ(calls_of([&] { split->reduce_scatter(*stream, "r", full.view(), shard.view()); }).calls, only(MpiCall::alltoall, num_calls));
  EXPECT_EQ(calls_of([&] { split->all_to_all(*stream, "t", full.view(), other.view()); }).calls, only(MpiCall::alltoallw, num_calls));
  EXPECT_EQ(calls_of([&] { split->broadcast(*stream, "b", full.view(), 0); }).calls,
            only(MpiCall::bcast, (full.view().bytes() + 1023) / 1024));

  // Long slices go point to point.
  const auto direct = make({.max_collective_slice_bytes = 0});
  const MpiCallCounts sent = calls_of([&] { direct->all_gather(*stream, "g", shard.view(), full.view()); });
  EXPECT_EQ(sent.of(MpiCall::isend), group->num_ranks() - 1);
  EXPECT_EQ(sent.of(MpiCall::irecv), group->num_ranks() - 1);
  EXPECT_EQ(sent.of(MpiCall::allgather), 0);
}

/// docs/parity.md F7, as far as it is there: what long slices carry is read where it lies and written where it is wanted.
TEST_F(MpiGroup, F7_LongSlicesGoFromTensorToTensor) {
  const auto group = make();
  const int num_ranks = group->num_ranks();
  const std::int64_t P = 10'000;
  constexpr std::int64_t kSliceBytes = 40'000;  // above max_collective_slice_bytes
  const auto stream = make_cpu_stream("comm", StreamMode::threaded);
  Data full(P * num_ranks, DType::f32), other(P * num_ranks, DType::f32), shard(P, DType::f32);
  const auto slice = [&](MpiCall call, Data& of, int r, int peer) -> MpiMessage {
    return {call, of.view().slice(r * P, P).data, kSliceBytes, peer};
  };
  std::vector<MpiMessage> gathered, swapped, sent;
  for (int r = 0; r < num_ranks; ++r) {
    if (r == group->rank()) continue;
    gathered.push_back(slice(MpiCall::irecv, full, r, r));
    gathered.push_back(slice(MpiCall::isend, full, group->rank(), r));
    swapped.push_back(slice(MpiCall::irecv, other, r, r));
    swapped.push_back(slice(MpiCall::isend, full, r, r));
    sent.push_back(slice(MpiCall::isend, full, r, r));
  }
  const auto messages = [&](const std::function<void()>& collective) {
    return testing::messages_of([&] {
      collective();
      stream->synchronize();
    });
  };
  EXPECT_THAT(messages([&] { group->all_gather(*stream, "g", full.view().slice(group->rank() * P, P), full.view()); }),
              ::testing::UnorderedElementsAreArray(gathered));
  EXPECT_THAT(messages([&] { group->all_to_all(*stream, "t", full.view(), other.view()); }), ::testing::UnorderedElementsAreArray(swapped));
  EXPECT_EQ(pool->stats().peak, 0) << "neither takes memory of its own";
  // What is to be added up has to wait somewhere; it is sent from where it lies, too.
  std::vector<MpiMessage> reduced = messages([&] { group->reduce_scatter(*stream, "r", full.view(), shard.view()); });
  std::erase_if(reduced, [](const MpiMessage& message) { return message.call == MpiCall::irecv; });
  EXPECT_THAT(reduced, ::testing::UnorderedElementsAreArray(sent));
}

// Blocks of two slices of 64. While block k is added up and gathered, k + 1 and then k + 2 are under way, so that the link has work.
TEST_F(MpiGroup, TheNextBlocksAreSentBeforeOneIsGathered_OnTwoRanks) {
  const auto group = make({.staging_bytes = 1024, .max_collective_slice_bytes = 0});
  const auto stream = make_cpu_stream("comm", StreamMode::inlined);
  std::vector<float> data(std::size_t{4} * 128);
  const int other = 1 - group->rank();
  const auto sent = [&](int block, int slice_of) -> const void* { return data.data() + block * 128 + slice_of * 64; };
  const auto to_add = [&](int block) { return sent(block, other); };
  const auto added_up = [&](int block) { return sent(block, group->rank()); };
  std::vector<const void*> in_order;
  for (const MpiMessage& message : testing::messages_of([&] {
         group->all_reduce(*stream, "a", {data.data(), Shape{std::ssize(data)}, DType::f32}, ReduceOp::sum);
       })) {
    if (message.call == MpiCall::isend) in_order.push_back(message.data);
  }
  EXPECT_THAT(in_order,
              ::testing::ElementsAre(to_add(0), to_add(1), to_add(2), added_up(0), to_add(3), added_up(1), added_up(2), added_up(3)));
}

TEST_F(MpiGroup, AGroupOfOneRankMakesNoMpiCalls) {
  const auto alone = make()->split(mpi::Communicator::world().rank(), 0, "alone");
  EXPECT_EQ(alone->num_ranks(), 1);
  const auto stream = make_cpu_stream("comm", StreamMode::inlined);
  const MpiCallCounts before = mpi_calls();
  testing::check_collectives(*alone, *stream, kNumels);
  EXPECT_EQ((mpi_calls() - before).total(), 0);
  EXPECT_EQ(pool->stats().peak, 0);
}

TEST_F(MpiGroup, GroupsOnTwoStreamsRunConcurrently) {
  const auto world = make();
  const auto other = world->duplicate("other");
  const auto a = make_cpu_stream("a", StreamMode::threaded);
  const auto b = make_cpu_stream("b", StreamMode::threaded);
  constexpr int kRounds = 50;
  std::vector<Data> x, y;
  for (int i = 0; i < kRounds; ++i) {
    x.emplace_back(5000, DType::f32).fill_as(world->rank());
    y.emplace_back(5000, DType::f32).fill_as(world->rank());
  }
  for (std::size_t i = 0; i < kRounds; ++i) {
    world->all_reduce(*a, "x", x[i].view(), ReduceOp::sum);
    other->all_reduce(*b, "y", y[i].view(), ReduceOp::max);
  }
  a->synchronize();
  b->synchronize();
  Data sum(5000, DType::f32), maximum(5000, DType::f32);
  for (std::int64_t i = 0; i < 5000; ++i) {
    sum.set(i, testing::folded(world->num_ranks(), i, DType::f32, ReduceOp::sum));
    maximum.set(i, testing::folded(world->num_ranks(), i, DType::f32, ReduceOp::max));
  }
  for (std::size_t i = 0; i < kRounds; ++i) {
    EXPECT_EQ(x[i].first_difference(sum), -1);
    EXPECT_EQ(y[i].first_difference(maximum), -1);
  }
}

TEST_F(MpiGroup, AGroupDoesNotWaitForAnother) {
  const auto world = make();
  const auto other = world->duplicate("other");
  const auto a = make_cpu_stream("a", StreamMode::threaded);
  const auto b = make_cpu_stream("b", StreamMode::threaded);
  Data x(5000, DType::f32), y(5000, DType::f32);
  x.fill_as(world->rank());
  y.fill_as(world->rank());
  std::atomic<bool> is_open{false};
  if (world->rank() == 0) {
    a->submit("gate", {}, [&] {
      while (!is_open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  world->broadcast(*a, "x", x.view(), 0);  // the other ranks are inside it already
  other->broadcast(*b, "y", y.view(), world->num_ranks() - 1);
  b->synchronize();
  is_open = true;
  a->synchronize();
  Data first(5000, DType::f32), last(5000, DType::f32);
  first.fill_as(0);
  last.fill_as(world->num_ranks() - 1);
  EXPECT_EQ(x.first_difference(first), -1);
  EXPECT_EQ(y.first_difference(last), -1);
}

TEST_F(MpiGroup, AnMpiErrorNamesGroupCollectiveLabelAndBytes_OnSeveralRanks) {
  const auto world = make();
  const auto stream = make_cpu_stream("comm", StreamMode::threaded);
  Data full(4 * world->num_ranks(), DType::f32), shard(4, DType::f32);
  testing::fail_next(MpiCall::allgather);  // on every rank, so that nobody hangs
  world->all_gather(*stream, "h.3", shard.view(), full.view());
  bool ran = false;
  stream->submit("after", {}, [&] { ran = true; });
  try {
    stream->synchronize();
    FAIL() << "expected an MpiError";
  } catch (const MpiError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr(fmt::format("group 'world' (rank {} of {})", world->rank(), world->num_ranks())),
                                HasSubstr(fmt::format("all_gather 'h.3' of {} bytes", full.view().bytes())),
                                HasSubstr("MPI_Allgather failed"), HasSubstr("mpi_transfer.cpp")));
  }
  EXPECT_FALSE(ran) << "the error is sticky";
  EXPECT_EQ(world->recorder().entries().back().state, CollectiveState::failed);
  stream->drain_and_clear_error();
  testing::check_all_gather(*world, *stream, 5, DType::f32, false);  // all ranks failed alike: the group still serves
}

TEST_F(MpiGroup, F5_APendingCollectiveIsDescribed_OnSeveralRanks) {
  const auto world = make();
  const mpi::Communicator host = mpi::Communicator::world();
  const auto stream = make_cpu_stream("comm", StreamMode::threaded);
  float x = 1;
  if (world->rank() == 0) {
    world->all_reduce(*stream, "late", {&x, Shape{1}, DType::f32}, ReduceOp::sum);
    while (world->recorder().entries().front().state == CollectiveState::enqueued) std::this_thread::yield();
    EXPECT_THAT(world->describe_pending(),
                AllOf(HasSubstr("group 'world' (rank 0 of"), HasSubstr("#1 all_reduce 'late' (4 bytes) running for 0.")));
  }
  host.barrier();
  if (world->rank() != 0) world->all_reduce(*stream, "late", {&x, Shape{1}, DType::f32}, ReduceOp::sum);
  stream->synchronize();
  EXPECT_EQ(x, static_cast<float>(world->num_ranks()));
  EXPECT_THAT(world->describe_pending(), HasSubstr("nothing is pending; last was #1"));
}

TEST_F(MpiGroup, OptionsAreChecked) {
  EXPECT_THROW((void)make({.max_call_bytes = 4}), ConfigError);
  EXPECT_THROW((void)make({.staging_bytes = 4}), ConfigError);
  EXPECT_THROW((void)make({.staging_bytes = std::int64_t{8} * mpi::Communicator::world().num_ranks()}), ConfigError) << "one block only";
  EXPECT_THROW((void)make({.max_call_bytes = std::int64_t{1} << 31}), ConfigError);
}

TEST_F(MpiGroup, StreamsMayBeThreadedHere) {
  EXPECT_TRUE(testing::session().has_thread_multiple());
  EXPECT_EQ(comm_stream_mode(testing::session(), StreamMode::threaded), StreamMode::threaded);
}

// What MPI says of the message itself, not that one of them has failed. (Of more than two ranks, those that fail first may
// leave others waiting: a failed collective ends the job.)
TEST_F(MpiGroup, WaitingTellsTheCause_OnTwoRanks) {
  const auto group = make({.max_collective_slice_bytes = 0});
  const auto stream = make_cpu_stream("comm", StreamMode::inlined);
  const std::int64_t numel = group->rank() == 0 ? 8 : 4;  // more than the others expect
  Data full(numel * group->num_ranks(), DType::f32), shard(numel, DType::f32);
  // A message that is there before its receive is posted fails in MPI_Irecv, and rank 0 would wait for what was not sent. One
  // that failed between MPI_Isend and the wait made MPI_Waitall of Open MPI 4.1 wait for ever.
  testing::meet_around_next_isend();
  group->all_gather(*stream, "h.0", shard.view(), full.view());
  std::string text;
  try {
    stream->synchronize();
  } catch (const MpiError& e) {
    text = e.what();
  }
  if (group->rank() == 0) {
    EXPECT_EQ(text, "");
  } else {
    EXPECT_THAT(text, AllOf(HasSubstr("all_gather 'h.0'"), HasSubstr("MPI_Wait failed"), HasSubstr("runcated")));
  }
  mpi::Communicator::world().barrier();
}

// Receives that were posted when a send failed do not take what is sent later.
TEST_F(MpiGroup, AFailedSendLeavesNoReceivePosted_OnSeveralRanks) {
  const auto group = make({.max_collective_slice_bytes = 0});
  const auto stream = make_cpu_stream("comm", StreamMode::inlined);
  Data full(4 * group->num_ranks(), DType::f32), shard(4, DType::f32), untouched(4 * group->num_ranks(), DType::f32);
  testing::fail_next(MpiCall::isend);
  group->all_gather(*stream, "h.0", shard.view(), full.view());
  EXPECT_THROW(stream->synchronize(), MpiError);
  stream->drain_and_clear_error();
  mpi::Communicator::world().barrier();
  testing::check_all_gather(*group, *stream, 4, DType::f32, false);
  EXPECT_EQ(full.first_difference(untouched), -1) << "nobody else writes into a buffer that its owner has back";
}

}  // namespace
}  // namespace mica
