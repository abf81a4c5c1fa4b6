// SPDX-License-Identifier: Apache-2.0
// Schedules of a few tasks whose times were worked out by hand, in seconds.
#include "mica/plan/simulator.hpp"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

namespace mica::plan {
namespace {

using Kind = SimOp::Kind;

constexpr std::uint8_t kCompute = 0, kComm = 1, kOther = 2;

SimOp task(std::uint8_t stream, double seconds, Resource resource = Resource::compute) {
  return {.kind = Kind::task, .stream = stream, .resource = resource, .seconds = seconds};
}
SimOp gather(double seconds) { return task(kComm, seconds, Resource::network); }
SimOp wait(std::uint8_t stream, std::int32_t event) { return {.kind = Kind::wait, .stream = stream, .event = event}; }
SimOp host_wait(std::int32_t event) { return {.kind = Kind::host_wait, .event = event}; }
SimOp mark() { return {.kind = Kind::mark}; }

SimStep run(const std::vector<SimOp>& ops, SimOptions options = {}) {
  options.num_streams = 3;
  const std::vector<SimStep> steps = simulate(ops, options);
  EXPECT_EQ(steps.size(), 1U);
  return steps.empty() ? SimStep{} : steps.front();
}

TEST(Simulator, TasksOfOneStreamRunInOrder) {
  const SimStep step = run({task(kCompute, 2), task(kCompute, 3), mark()});
  EXPECT_DOUBLE_EQ(step.seconds, 5);
  EXPECT_DOUBLE_EQ(step.compute_busy, 5);
  EXPECT_DOUBLE_EQ(step.communication_busy, 0);
}

// A gather of 4 beside 3 of computing, which waits for it before 2 more: 0-3 both, 3-4 exposed, 4-6 computing.
TEST(Simulator, WhatComputingWaitsForIsExposed) {
  const SimStep step = run({gather(4), task(kCompute, 3), wait(kCompute, 0), task(kCompute, 2), mark()});
  EXPECT_DOUBLE_EQ(step.seconds, 6);
  EXPECT_DOUBLE_EQ(step.compute_busy, 5);
  EXPECT_DOUBLE_EQ(step.communication_busy, 4);
  EXPECT_DOUBLE_EQ(step.exposed, 1);
}

// Enqueued before it is needed, the second gather hides behind the first layer; behind it, it does not.
TEST(Simulator, PrefetchHidesAGather) {
  const SimStep with = run({gather(1), gather(2), wait(kCompute, 0), task(kCompute, 3), wait(kCompute, 1), task(kCompute, 3), mark()});
  EXPECT_DOUBLE_EQ(with.seconds, 7);
  EXPECT_DOUBLE_EQ(with.exposed, 1);
  const SimStep without =
      run({gather(1), wait(kCompute, 0), task(kCompute, 3), wait(kComm, 2), gather(2), wait(kCompute, 4), task(kCompute, 3), mark()});
  EXPECT_DOUBLE_EQ(without.seconds, 9);
  EXPECT_DOUBLE_EQ(without.exposed, 3);
}

// The host takes 1 a task: the second task of 0.25 cannot begin before it is enqueued at 1, the third at 2.
TEST(Simulator, TheHostMayBeTooSlow) {
  const SimStep step = run({task(kCompute, 0.25), task(kCompute, 0.25), task(kCompute, 0.25), mark()}, {.host_task_s = 1});
  // The mark is reached at 3, when all tasks are done.
  EXPECT_DOUBLE_EQ(step.seconds, 3);
  EXPECT_DOUBLE_EQ(step.compute_busy, 0.75);
}

// A rate limiter: the host enqueues the second gather only once the first layer is done at 5, although the links are idle from 1.
TEST(Simulator, TheHostWaitsInARateLimiter) {
  const SimStep step =
      run({gather(1), wait(kCompute, 0), task(kCompute, 4), host_wait(2), gather(2), wait(kCompute, 4), task(kCompute, 1), mark()});
  EXPECT_DOUBLE_EQ(step.seconds, 8);
  EXPECT_DOUBLE_EQ(step.exposed, 3);
  EXPECT_DOUBLE_EQ(step.host_waits, 5);
}

// Two collectives of 2 over one kind of link, both from 0: each at half speed, both end at 4. Over two kinds: both end at 2.
TEST(Simulator, CollectivesShareALink) {
  EXPECT_DOUBLE_EQ(run({gather(2), task(kOther, 2, Resource::network), mark()}).seconds, 4);
  EXPECT_DOUBLE_EQ(run({gather(2), task(kOther, 2, Resource::in_node), mark()}).seconds, 2);
  // 1 and 3: half speed until the first ends at 2, then 2 are left of the other: 4.
  EXPECT_DOUBLE_EQ(run({gather(1), task(kOther, 3, Resource::network), mark()}).seconds, 4);
}

// Beside a gather of 2, computing at half speed does 1 of its 3; the rest takes 2 more. The gather at full speed.
TEST(Simulator, CommunicationSlowsComputationDown) {
  EXPECT_DOUBLE_EQ(run({gather(2), task(kCompute, 3), mark()}, {.compute_beside_communication = 0.5}).seconds, 4);
  // And the other way round: the gather takes 4, in which 2 are computed, and the last 1 is computed alone.
  EXPECT_DOUBLE_EQ(
      run({gather(2), task(kCompute, 3), mark()}, {.compute_beside_communication = 0.5, .communication_beside_compute = 0.5}).seconds, 5);
}

// 2 and 3 of computing on two streams: half speed until the first ends at 4, then 1 is left of the other.
TEST(Simulator, StreamsShareTheProcessor) {
  EXPECT_DOUBLE_EQ(run({task(kCompute, 3), task(kOther, 2), mark()}).seconds, 5);
  EXPECT_DOUBLE_EQ(run({task(kCompute, 3), task(kOther, 2), wait(kCompute, 1), task(kCompute, 1), mark()}).seconds, 6);
  // Beside a gather of 2, each at a quarter: half a second of both is done by 2; 2.5 and 1.5 are left.
  EXPECT_DOUBLE_EQ(run({gather(2), task(kCompute, 3), task(kOther, 2), mark()}, {.compute_beside_communication = 0.5}).seconds, 6);
}

TEST(Simulator, InlineStreamsOverlapNothing) {
  const SimStep step = run({gather(4), task(kCompute, 3), wait(kCompute, 0), task(kCompute, 2), mark()}, {.inlined = true});
  EXPECT_DOUBLE_EQ(step.seconds, 9);
  EXPECT_DOUBLE_EQ(step.exposed, 4);
  EXPECT_DOUBLE_EQ(step.host_waits, 0);
}

// The host runs ahead: the second step's gather begins while the first step still computes.
TEST(Simulator, AStepEndsWhenItsTasksAreDone) {
  const std::vector<SimOp> ops{gather(1), wait(kCompute, 0), task(kCompute, 5), mark(),
                               gather(1), wait(kCompute, 4), task(kCompute, 5), mark()};
  const std::vector<SimStep> steps = simulate(ops, {.num_streams = 2});
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_DOUBLE_EQ(steps[0].seconds, 6);
  EXPECT_DOUBLE_EQ(steps[1].seconds, 5);
  EXPECT_DOUBLE_EQ(steps[1].exposed, 0);
}

// Late in a long run the clock's last digit is longer than what rounding leaves of a task.
TEST(Simulator, TimeGoesOnInALongStep) {
  std::vector<SimOp> ops{task(kCompute, 1e6)};
  for (int i = 0; i < 1000; ++i) {
    ops.push_back(task(kCompute, 1e-3 / 3));
    ops.push_back(task(kComm, 1e-3 / 7, Resource::network));
    ops.push_back(task(kOther, 1e-3 / 11, Resource::network));
    ops.push_back(wait(kComm, 0));
  }
  ops.push_back(mark());
  EXPECT_NEAR(run(ops, {.compute_beside_communication = 0.7}).seconds, 1e6, 2);
}

TEST(Simulator, RefusesAWaitForALaterOp) {
  const std::vector<SimOp> ops{wait(kCompute, 1), task(kComm, 1)};
  EXPECT_THROW(static_cast<void>(simulate(ops, {.num_streams = 2})), Error);
}

}  // namespace
}  // namespace mica::plan
