// SPDX-License-Identifier: Apache-2.0
// docs/parity.md D3 (rate limiter), and that delays of a quarter of a second anywhere change no bits.
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "mica/comm/fake_group.hpp"

#include "probe_model.hpp"
#include "support/parity.hpp"
#include "testing/disturbed_stream.hpp"

namespace mica::fsdp::testing {
namespace {

using mica::testing::ParityCase;
using mica::testing::ParityRun;
using mica::testing::run_sharded;

/// Units that the host is ahead of a slow compute stream, at most, in a forward of 12: a layer computes until the host is 5 ahead, or
/// for 100 ms.
int most_ahead(bool limit_all_gathers) {
  RankRig rig(make_fake_group(0, 2, nullptr), 0, {}, StreamMode::threaded);
  std::atomic<int> num_computed = 0;
  std::atomic<int> entered = 0;
  int most = 0;
  ProbeModel model(12, [&](const std::string&) {
    most = std::max(most, entered - num_computed);
    ++entered;
    rig.compute().submit("slow layer", {}, [&] {
      for (int ms = 0; ms < 100 && entered - num_computed <= 5; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++num_computed;
    });
  });
  shard_layers(model, rig.device_mesh(), {.root = RootOptions{.limit_all_gathers = limit_all_gathers}});
  rig.pool().reset_peak();
  static_cast<void>(model.forward(rig.context(), {input_of(rig.context())}, nullptr));
  rig.compute().synchronize();
  EXPECT_EQ(rig.pool().stats().peak_of(MemoryRole::unsharded_param), 4 * (4 + 2 * 6));  // the root's, and two units
  return most;
}

// D3: at most two units' unsharded parameters in flight; the host waits for the older one before it gathers a third.
TEST(D3RateLimiter, TheHostIsAtMostTwoUnitsAhead) {
  EXPECT_LE(most_ahead(true), 2);
  EXPECT_GT(most_ahead(false), 4);
}

// D3: a pass ends without a wait, so that the host enqueues the optimizer and the next pass while the device still works.
TEST(D3RateLimiter, TheEndOfAPassDoesNotWait) {
  RankRig rig(make_fake_group(0, 2, nullptr), 0, {}, StreamMode::threaded);
  ProbeModel model(1);  // too few units for a wait on the way
  shard_layers(model, rig.device_mesh(), {});
  train_pass(model, rig.context());  // the first one agrees on the order
  root_of(model).zero_grad();
  std::promise<void> passed;
  std::atomic<bool> was_late = false;
  rig.compute().submit("slow device", {}, [&, is_over = passed.get_future().share()] {
    was_late = is_over.wait_for(std::chrono::seconds(60)) == std::future_status::timeout;
  });
  train_pass(model, rig.context());
  root_of(model).reshard();  // as an optimizer does
  passed.set_value();
  rig.compute().synchronize();
  EXPECT_FALSE(was_late);
}

/// Rank 0's run on 4 ranks, its tasks delayed as the seed says; 0: not at all.
ParityRun delayed_run(const ParityCase& c, std::uint64_t seed) {
  ParityRun of_rank_0;
  run_local_ranks(4, [&](std::unique_ptr<ProcessGroup> world) {
    const int rank = world->rank();
    std::uint64_t stream_seed = seed * 1000 + static_cast<std::uint64_t>(rank) * 10;
    const auto wrap = [&](std::unique_ptr<Stream> stream) {
      ++stream_seed;
      if (seed == 0) return stream;
      // A compute stream has many tasks, the others a few dozen.
      const std::uint64_t one_in = stream->name() == "compute" ? 900 : 60;
      return delay_tasks(std::move(stream), stream_seed, std::chrono::milliseconds(250), one_in);
    };
    const ParityRun run = run_sharded(std::move(world), c, {.wrap_stream = wrap});
    if (rank == 0) of_rank_0 = run;
  });
  return of_rank_0;
}

// Delays of communication and computation of up to 250 ms at random points.
TEST(Delays, OfAQuarterOfASecondChangeNoBits) {
  ParityCase flat{.strategy = Strategy::hybrid_shard, .shard_size = 2, .forward_prefetch = true, .accumulation = 2};
  flat.mode = StreamMode::threaded;
  ParityCase per_parameter{.strategy = Strategy::full_shard, .param_dtype = DType::bf16, .checkpointed = true};
  per_parameter.sharding = Sharding::per_parameter;
  per_parameter.cpu_offload = CpuOffload::parameters;
  per_parameter.mode = StreamMode::threaded;
  for (const ParityCase& c : {flat, per_parameter}) {
    const ParityRun undisturbed = delayed_run(c, 0);
    for (const std::uint64_t seed : {1, 2}) {
      const ParityRun run = delayed_run(c, seed);
      EXPECT_EQ(run.losses, undisturbed.losses) << c.describe() << " seed " << seed;
      EXPECT_EQ(run.first_gradients, undisturbed.first_gradients) << c.describe() << " seed " << seed;
      EXPECT_EQ(run.parameters, undisturbed.parameters) << c.describe() << " seed " << seed;
    }
  }
}

}  // namespace
}  // namespace mica::fsdp::testing
