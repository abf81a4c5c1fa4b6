// SPDX-License-Identifier: Apache-2.0
// A group over MPI that is aborted waits for nobody any more.
#include <functional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/comm/mpi_group.hpp"
#include "mica/core/error.hpp"

#include "support/mpi_test.hpp"

namespace mica {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Each collective once, of `numel` elements a rank.
struct AllCollectives {
  AllCollectives(int num_ranks, std::int64_t numel) : numel(numel), all(static_cast<std::size_t>(num_ranks * numel)), other(all.size()) {}

  [[nodiscard]] std::vector<std::function<void(ProcessGroup&, Stream&)>> calls() {
    const TensorView full{all.data(), Shape{std::ssize(all)}, DType::f32};
    const TensorView second{other.data(), full.shape, DType::f32};
    const TensorView shard = second.slice(0, numel);
    return {[=](ProcessGroup& g, Stream& s) { g.all_gather(s, "gather", shard, full); },
            [=](ProcessGroup& g, Stream& s) { g.reduce_scatter(s, "scatter", full, shard); },
            [=](ProcessGroup& g, Stream& s) { g.all_reduce(s, "sum", full, ReduceOp::sum); },
            [=](ProcessGroup& g, Stream& s) { g.all_to_all(s, "swap", full, second); },
            [=](ProcessGroup& g, Stream& s) { g.broadcast(s, "hand out", full, g.num_ranks() - 1); },
            [](ProcessGroup& g, Stream& s) { g.barrier(s, "meet"); }};
  }

  std::int64_t numel;
  std::vector<float> all, other;
};

std::string error_of(Stream& stream) {
  try {
    stream.synchronize();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

// Rank 0 calls a collective to which the others never come.
TEST(MpiAbort, EndsWhatIsUnderWayAndWhatComesLater) {
  const mpi::Communicator world = mpi::Communicator::world();
  const std::unique_ptr<Pool> pool = make_cpu_pool();
  struct Case {
    std::int64_t numel;
    int node;
  };
  for (const auto& [numel, node] : {Case{3, 0}, Case{70'000, 0}, Case{70'000, world.rank() % 2}}) {
    AllCollectives collectives(world.num_ranks(), numel);
    for (const auto& call : collectives.calls()) {
      const auto group = make_mpi_group(world.duplicate(), *pool, "shard", {.can_be_aborted = true, .node = node});
      if (world.rank() == 0) {
        const auto stream = make_cpu_stream("comm", StreamMode::threaded);
        call(*group, *stream);
        const Event end = stream->record();
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        EXPECT_EQ(end.is_complete(), world.num_ranks() == 1);
        group->abort("rank 1 does not answer");
        group->abort("nor does rank 2");  // the first reason counts
        if (world.num_ranks() == 1) {     // nobody is waited for
          call(*group, *stream);
          EXPECT_EQ(error_of(*stream), "");
          continue;
        }
        EXPECT_THAT(error_of(*stream), AllOf(HasSubstr("group 'shard' (rank 0 of"), HasSubstr("rank 1 does not answer")));
        stream->drain_and_clear_error();
        call(*group, *stream);
        EXPECT_THAT(error_of(*stream), HasSubstr("rank 1 does not answer"));
        stream->drain_and_clear_error();
      }
      world.barrier();
    }
  }
}

// A group that was not made for it waits for what is under way, but begins nothing more.
TEST(MpiAbort, NothingIsBegunInAnyGroup) {
  const mpi::Communicator world = mpi::Communicator::world();
  const std::unique_ptr<Pool> pool = make_cpu_pool();
  AllCollectives collectives(world.num_ranks(), 3);
  const auto group = make_mpi_group(world.duplicate(), *pool, "shard");
  if (world.rank() == 0 && world.num_ranks() > 1) {
    group->abort("rank 1 does not answer");
    for (const auto& call : collectives.calls()) {
      const auto stream = make_cpu_stream("comm", StreamMode::inlined);
      call(*group, *stream);
      EXPECT_THAT(error_of(*stream), HasSubstr("rank 1 does not answer"));
      stream->drain_and_clear_error();
    }
  }
  world.barrier();
}

}  // namespace
}  // namespace mica
