// SPDX-License-Identifier: Apache-2.0
// The schedule's waits (docs/design.md, One step as data): none is missing, and none is superfluous. Among them are those of
// docs/parity.md D18: before a step's first unshard the unshard and pre-unshard streams wait for the compute stream.
#include <map>
#include <mutex>
#include <set>

#include <gtest/gtest.h>

#include "mica/fsdp/deterministic.hpp"

#include "support/parity.hpp"
#include "testing/checking_stream.hpp"
#include "testing/disturbed_stream.hpp"
#include "testing/local_group.hpp"

namespace mica::testing {
namespace {

using fsdp::BackwardPrefetch;
using fsdp::Strategy;

/// Between them they pass every wait of the schedule. Where the rate limiter makes the host wait, that orders streams
/// too, so it is off in some.
std::vector<ParityCase> configurations() {
  return {
      {.model = ParityCase::Model::large_gpt2, .accumulation = 2},
      {.strategy = Strategy::full_shard, .limit_all_gathers = false},
      {.strategy = Strategy::full_shard, .param_dtype = DType::bf16, .reduce_dtype = DType::bf16, .accumulation = 2},
      {.strategy = Strategy::full_shard, .backward_prefetch = BackwardPrefetch::post, .forward_prefetch = true, .checkpointed = true},
      {.strategy = Strategy::shard_grad_op, .param_dtype = DType::bf16, .accumulation = 2, .no_sync = true},
      {.strategy = Strategy::hybrid_shard, .shard_size = 2, .param_dtype = DType::bf16, .limit_all_gathers = false, .accumulation = 2},
      {.strategy = Strategy::hybrid_shard, .shard_size = 2, .accumulation = 2, .deterministic = true},
      {.strategy = Strategy::hybrid_shard, .shard_size = 2, .reduction = &fsdp::compressing_reduction(DType::bf16)},
      {.strategy = Strategy::full_shard, .limit_all_gathers = false, .sharding = fsdp::Sharding::per_parameter, .reshard_ranks = 2},
      {.strategy = Strategy::full_shard, .param_dtype = DType::bf16, .accumulation = 2, .cpu_offload = fsdp::CpuOffload::parameters},
      {.strategy = Strategy::no_shard, .shard_size = 1, .param_dtype = DType::bf16, .limit_all_gathers = false},
  };
}

struct Checked {
  std::vector<std::string> violations;        ///< of all ranks
  std::map<std::string, std::int64_t> sites;  ///< waits by place, of rank 0
};

/// Runs the case on 4 local ranks under checking streams, with the waits of one place left out.
Checked run_checked(ParityCase c, StreamMode mode, const std::string& dropped_place) {
  c.mode = mode;
  Checked checked;
  std::mutex mutex;
  run_local_ranks(4,
                  [&](std::unique_ptr<ProcessGroup> world) {
                    const int rank = world->rank();
                    HappensBeforeChecker checker;
                    WaitDropper dropper;
                    if (!dropped_place.empty()) dropper.drop_site(dropped_place);
                    (void)run_sharded(std::move(world), c, {.wrap_stream = [&](std::unique_ptr<Stream> stream) {
                                        return drop_waits(checker.wrap(std::move(stream)), dropper);
                                      }});
                    const std::scoped_lock lock(mutex);
                    for (const auto& violation : checker.violations()) checked.violations.push_back(violation.text);
                    if (rank != 0) return;
                    for (const auto& site : dropper.sites()) checked.sites[site.place] += site.num_waits;
                  },
                  {.shares_memory = c.shares_memory});
  return checked;
}

TEST(Waits, D18_F6_NoneIsMissing) {
  for (const StreamMode mode : {StreamMode::inlined, StreamMode::threaded}) {
    for (const ParityCase& each : configurations()) {
      for (const bool shares_memory : {false, true}) {
        ParityCase c = each;
        c.shares_memory = shares_memory;
        if (shares_memory && !c.can_share(4)) continue;
        const Checked checked = run_checked(c, mode, "");
        EXPECT_TRUE(checked.violations.empty())
            << c.describe() << ": " << checked.violations.size() << " accesses without an order, first: " << checked.violations.front();
      }
    }
  }
}

TEST(Waits, D18_F6_EveryOneIsNeeded) {
  // Inline streams: what is enqueued runs in host order, so that a dropped wait is seen by the checker but harms nothing.
  std::set<std::string> places;
  for (const ParityCase& c : configurations()) {
    for (const auto& [place, num_waits] : run_checked(c, StreamMode::inlined, "").sites) places.insert(place);
  }
  std::size_t of_schedule = 0;
  for (const std::string& place : places) {
    of_schedule += place.starts_with("pool.cpp") ? 0 : 1;
    bool seen = false;
    for (const ParityCase& c : configurations()) {
      seen = seen || !run_checked(c, StreamMode::inlined, place).violations.empty();
    }
    EXPECT_TRUE(seen) << "no configuration needs the wait at " << place << ": delete it, or add the configuration that does";
  }
  // expose, unshard (cast -> gather, part kept after forward -> gather among neighbours), reduce (compute -> reduce, reduce -> all-reduce,
  // and that of the two other reductions); root: two at the beginning of a forward, two at the end of a backward.
  EXPECT_EQ(of_schedule, 11U) << ::testing::PrintToString(places);
}

TEST(Waits, F6_TimingChangesNoBits) {
  ParityCase c{.strategy = Strategy::hybrid_shard, .shard_size = 2, .forward_prefetch = true, .mode = StreamMode::threaded};
  std::vector<ParityRun> runs;
  for (const std::uint64_t seed : {0, 1, 2, 3, 4}) {
    c.shares_memory = seed > 2;
    ParityRun of_rank_0;
    run_local_ranks(4,
                    [&](std::unique_ptr<ProcessGroup> world) {
                      const int rank = world->rank();
                      std::uint64_t stream_seed = seed * 1000 + static_cast<std::uint64_t>(rank) * 10;
                      const ParityRun run =
                          run_sharded(std::move(world), c, {.wrap_stream = [&](std::unique_ptr<Stream> stream) {
                                        return seed == 0 ? std::move(stream)
                                                         : delay_tasks(std::move(stream), ++stream_seed, std::chrono::microseconds(300));
                                      }});
                      if (rank == 0) of_rank_0 = run;
                    },
                    {.shares_memory = c.shares_memory});
    runs.push_back(of_rank_0);
  }
  for (std::size_t i = 1; i < runs.size(); ++i) EXPECT_EQ(runs[i].parameters, runs[0].parameters) << "delays " << i;
}

}  // namespace
}  // namespace mica::testing
