// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/process_group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/comm/fake_group.hpp"
#include "mica/core/error.hpp"
#include "mica/device/block_memory.hpp"

#include "support/collective_checks.hpp"

namespace mica {
namespace {

using ::testing::AllOf;
using testing::Data;
using ::testing::HasSubstr;

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const ConfigError& e) {
    return e.what();
  }
  ADD_FAILURE() << "expected a ConfigError";
  return {};
}

class FakeGroupTest : public ::testing::Test {
 protected:
  FakeRecorder recorder;
  std::unique_ptr<ProcessGroup> group = make_fake_group(1, 3, &recorder);
  std::unique_ptr<Stream> stream = make_cpu_stream("comm", StreamMode::inlined);
};

TEST_F(FakeGroupTest, LargeBuffersHaveBlocksOfTheirOwnIfAsked) {
  const auto pool = make_dry_pool(DeviceKind::cuda);
  auto& blocks = dynamic_cast<BlockMemory&>(*pool);
  const auto has_own = [&](ProcessGroup& of, std::int64_t bytes) {
    const Buffer buffer = of.allocate(*pool, bytes, MemoryRole::communication, *stream);
    return blocks.block_bytes(buffer.data()) != 0;
  };
  EXPECT_FALSE(has_own(*group, 1 << 30));
  const auto asked = make_fake_group(0, 4, nullptr, {.own_blocks_from = 1000});
  const auto half = asked->subgroup(std::vector<int>{0, 1}, "half"), alone = asked->subgroup(std::vector<int>{0}, "alone");
  for (ProcessGroup* each : {asked.get(), half.get()}) {
    EXPECT_TRUE(has_own(*each, 1000));
    EXPECT_FALSE(has_own(*each, 999));
  }
  EXPECT_FALSE(has_own(*alone, 1000)) << "it communicates with nobody";
  const auto on_cpu = make_dry_pool(DeviceKind::cpu);
  EXPECT_NE(asked->allocate(*on_cpu, 1000, MemoryRole::communication, *stream).data(), nullptr);
}

TEST_F(FakeGroupTest, WrongArgumentsAreRefusedBeforeAnythingIsCounted) {
  Data full(6, DType::f32), shard(2, DType::f32), half(2, DType::bf16), three(3, DType::f32), ids(6, DType::i32);
  const TensorView absent(nullptr, Shape{6}, DType::f32);
  EXPECT_THAT(refusal_of([&] { group->all_gather(*stream, "h.3", three.view(), full.view()); }),
              AllOf(HasSubstr("all_gather 'h.3' in group 'fake'"), HasSubstr("3 ranks x shard of 3 elements = 9"), HasSubstr("has 6")));
  EXPECT_THAT(refusal_of([&] { group->reduce_scatter(*stream, "h.3", full.view(), three.view()); }), HasSubstr("= 9"));
  EXPECT_THAT(refusal_of([&] { group->all_gather(*stream, "h.3", half.view(), full.view()); }),
              AllOf(HasSubstr("the shard is bf16"), HasSubstr("fp32")));
  EXPECT_THAT(refusal_of([&] { group->all_gather(*stream, "x", full.view().slice(0, 2), full.view()); }),
              AllOf(HasSubstr("overlaps"), HasSubstr("element 2")));
  EXPECT_THAT(refusal_of([&] { group->reduce_scatter(*stream, "x", full.view(), full.view().slice(3, 2)); }), HasSubstr("overlaps"));
  EXPECT_THAT(refusal_of([&] { group->all_to_all(*stream, "h.3", full.view(), three.view()); }),
              AllOf(HasSubstr("all_to_all 'h.3'"), HasSubstr("6 elements of fp32 are sent, 3 of fp32 received")));
  EXPECT_THAT(refusal_of([&] { group->all_to_all(*stream, "x", shard.view(), half.view()); }), HasSubstr("2 of bf16 received"));
  EXPECT_THAT(refusal_of([&] { group->all_to_all(*stream, "x", full.view().slice(0, 2), shard.view()); }), HasSubstr("3 equal slices"));
  EXPECT_THAT(refusal_of([&] { group->all_to_all(*stream, "x", full.view(), full.view()); }), HasSubstr("overlaps"));
  EXPECT_THAT(refusal_of([&] { group->all_reduce(*stream, "x", absent, ReduceOp::sum); }), HasSubstr("has no memory"));
  EXPECT_THAT(refusal_of([&] { group->all_reduce(*stream, "x", ids.view(), ReduceOp::sum); }), HasSubstr("only fp32, bf16 and fp16"));
  EXPECT_THAT(refusal_of([&] { group->broadcast(*stream, "x", full.view(), 3); }), AllOf(HasSubstr("from rank 3"), HasSubstr("0 to 2")));
  EXPECT_EQ(group->counts().calls, (std::array<std::int64_t, kNumCollectives>{}));
  EXPECT_TRUE(recorder.calls.empty());
  EXPECT_THAT(refusal_of([] { (void)make_fake_group(3, 3, nullptr); }), HasSubstr("rank 3 of 3"));
}

TEST_F(FakeGroupTest, RecordsCallsOfAllItsGroups) {
  Data full(6, DType::f32), swapped(6, DType::f32), shard(2, DType::f32);
  full.fill_as(0);
  shard.fill_as(1);
  group->all_gather(*stream, "g", shard.view(), full.view());
  const std::vector<int> members{2, 1};
  const auto pair = group->subgroup(members, "pair");
  EXPECT_EQ(pair->rank(), 1);
  EXPECT_EQ(pair->num_ranks(), 2);
  pair->all_reduce(*stream, "a", full.view(), ReduceOp::sum);
  group->duplicate("copy")->reduce_scatter(*stream, "r", full.view(), shard.view());
  group->all_to_all(*stream, "t", full.view(), swapped.view());
  group->broadcast(*stream, "b", shard.view(), 0);
  group->barrier(*stream, "m");
  const std::vector<int> alone{1};
  group->subgroup(alone, "alone")->all_reduce(*stream, "not recorded", full.view(), ReduceOp::sum);

  std::vector<std::string> seen;
  for (const FakeCall& c : recorder.calls) seen.push_back(fmt::format("{} {} {} {}", c.group, collective_name(c.kind), c.label, c.bytes));
  EXPECT_THAT(seen, ::testing::ElementsAre("fake all_gather g 24", "pair all_reduce a 24", "copy reduce_scatter r 24",
                                           "fake all_to_all t 24", "fake broadcast b 8", "fake barrier m 0"));
  // The own slice went in and came out; the rest is as it was.
  Data expected(6, DType::f32);
  expected.fill_as(0);
  expected.set(2, testing::value_of(1, 0));
  expected.set(3, testing::value_of(1, 1));
  EXPECT_EQ(full.first_difference(expected), -1);
  EXPECT_EQ(group->busy_ms(), 0);
  EXPECT_EQ(group->counts().of(Collective::all_gather), 1);
  EXPECT_EQ(group->counts().bytes_of(Collective::all_gather), 24);
}

// As ranks of the group that was made first.
TEST(FakeGroupMembers, GroupsOfGroupsKnowTheirMembers) {
  FakeRecorder recorder;
  std::vector<std::string> told;
  recorder.on_call = [&](const FakeCall& call, Stream&) { told.push_back(call.group); };
  const auto stream = make_cpu_stream("s", StreamMode::inlined);
  const auto world = make_fake_group(0, 8, &recorder);
  const auto even = world->subgroup(std::vector<int>{0, 2, 4, 6}, "even");
  const auto ends = even->subgroup(std::vector<int>{0, 3}, "ends")->duplicate("ends again");
  float value = 1;
  ends->all_reduce(*stream, "x", TensorView(&value, Shape{1}, DType::f32), ReduceOp::sum);
  ASSERT_EQ(recorder.calls.size(), 1U);
  EXPECT_EQ(*recorder.calls[0].members, (std::vector<int>{0, 6}));
  EXPECT_EQ(recorder.calls[0].dtype, DType::f32);
  EXPECT_EQ(told, std::vector<std::string>{"ends again"});
}

TEST_F(FakeGroupTest, SubgroupsNeedTheirRankAndNoDoubles) {
  const std::vector<int> others{0, 2}, twice{1, 2, 2}, outside{1, 3};
  EXPECT_THAT(refusal_of([&] { (void)group->subgroup(others, "x"); }), HasSubstr("rank 1 is not among"));
  EXPECT_THAT(refusal_of([&] { (void)group->subgroup(twice, "x"); }), HasSubstr("member 2 is named twice"));
  EXPECT_THAT(refusal_of([&] { (void)group->subgroup(outside, "x"); }), HasSubstr("member 3"));
  EXPECT_THAT(refusal_of([&] { (void)group->split(0, 0, "x"); }), HasSubstr("use subgroup()"));
}

TEST(GroupOfOne, CopiesAndCountsNothing) {
  const auto group = make_fake_group(0, 1, nullptr);
  const auto stream = make_cpu_stream("comm", StreamMode::threaded);
  const std::vector<std::int64_t> numels{0, 1, 5};
  testing::check_collectives(*group, *stream, numels);
  EXPECT_EQ(group->describe_pending(), "group 'fake' (rank 0 of 1): nothing was ever enqueued");
}

TEST(CollectiveNames, AreThoseOfTheInterface) {
  EXPECT_STREQ(collective_name(Collective::all_gather), "all_gather");
  EXPECT_STREQ(collective_name(Collective::barrier), "barrier");
}

}  // namespace
}  // namespace mica
