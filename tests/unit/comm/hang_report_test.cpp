// SPDX-License-Identifier: Apache-2.0
#include "mica/comm/hang_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"

namespace mica {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Four ranks on two nodes with one group of all of them, in the all-gathers of block.0, block.1, ...
class Hang : public ::testing::Test {
 protected:
  Hang() {
    scene_.hosts = {"node1", "node1", "node2", "node2"};
    for (int rank = 0; rank < 4; ++rank) {
      HangRecord record;
      record.rank = record.written_by = rank;
      record.host = scene_.hosts[static_cast<std::size_t>(rank)];
      record.pid = 4700 + rank;
      record.groups.push_back({.name = "shard", .members = "0-3"});
      scene_.records.push_back(record);
    }
  }
  [[nodiscard]] HangRecord& record(int rank) { return scene_.records[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] HangRecord::Group& group(int rank) { return record(rank).groups[0]; }

  /// The rank has done so many collectives, and waits in the next one.
  void waits_in(int rank, int sequence, double seconds) {
    for (int s = 1; s <= sequence; ++s)
      adds(rank, s, "all_gather", "block." + std::to_string(s), s < sequence ? "done" : "started", seconds);
    group(rank).enqueued = group(rank).entered = sequence;
    group(rank).ended = sequence - 1;
    group(rank).waits_s = seconds;
  }
  /// It has done so many, and waits in none.
  void has_done(int rank, int sequence, double seconds) {
    for (int s = 1; s <= sequence; ++s) adds(rank, s, "all_gather", "block." + std::to_string(s), "done", seconds);
    group(rank).enqueued = group(rank).entered = group(rank).ended = sequence;
  }
  void adds(int rank, int sequence, const std::string& kind, const std::string& label, const std::string& state, double seconds) {
    record(rank).events.push_back({.group = 0,
                                   .sequence = sequence,
                                   .kind = kind,
                                   .label = label,
                                   .bytes = 4096,
                                   .state = state,
                                   .enqueued_s = seconds + 0.2,
                                   .started_s = seconds + 0.1,
                                   .ended_s = state == "done" ? seconds : 0});
  }
  void lose(int rank) { scene_.records.erase(scene_.records.begin() + rank); }

  HangScene scene_;
};

TEST_F(Hang, ARankThatHasNotEnteredIsNamedWithThoseWhoWait) {
  for (const int rank : {0, 1, 2}) waits_in(rank, 7, 31.4 - rank);
  has_done(3, 6, 33);
  EXPECT_THAT(find_causes(scene_), ElementsAre("rank 3 (node2) has not entered all-gather #7 of block.7; ranks 0-2 have waited for it for "
                                               "31 s; its last was all-gather #6 of block.6, done 33 s before"));
  EXPECT_THAT(hang_report(scene_), AllOf(HasSubstr("ranks 0-2: waiting in all-gather #7 of block.7, group 'shard', 4096 bytes\n"),
                                         HasSubstr("rank 3 (node2): in no collective; its last was all-gather #6 of block.6")));
}

TEST_F(Hang, OfTwoCollectivesThatRanksWaitInTheFirstCounts) {
  waits_in(0, 7, 31);
  waits_in(1, 6, 32);
  for (const int rank : {2, 3}) has_done(rank, 5, 33);
  EXPECT_THAT(find_causes(scene_), ElementsAre(HasSubstr("ranks 2-3 (node2) have not entered all-gather #6 of block.6; rank 1 (node1) has "
                                                         "waited for it for 32 s")));
}

TEST_F(Hang, WhoWaitsElsewhereIsNoCauseWhereSomebodyWaitsNowhere) {
  for (const int rank : {0, 1}) waits_in(rank, 7, 31);
  has_done(2, 6, 33);
  has_done(3, 6, 33);
  record(2).groups.push_back({.name = "pair", .members = "2-3", .enqueued = 1, .entered = 1, .ended = 0, .waits_s = 30});
  record(3).groups.push_back({.name = "pair", .members = "2-3"});
  EXPECT_THAT(find_causes(scene_),
              ElementsAre(HasSubstr("rank 3 (node2) has not entered all-gather #7 of block.7; ranks 0-1 (node1) have waited"),
                          HasSubstr("rank 3 (node2) has not entered collective #1; rank 2 (node2) has waited")));
}

TEST_F(Hang, RanksThatWaitForEachOtherInTwoGroupsAreNamed) {
  for (const int rank : {0, 1}) waits_in(rank, 7, 31);
  for (const int rank : {2, 3}) {
    has_done(rank, 6, 33);
    record(rank).groups.push_back({.name = "other", .members = "0-3", .enqueued = 1, .entered = 1, .ended = 0, .waits_s = 30});
  }
  for (const int rank : {0, 1}) record(rank).groups.push_back({.name = "other", .members = "0-3"});
  EXPECT_THAT(find_causes(scene_), ElementsAre(HasSubstr("ranks 2-3 (node2) have not entered all-gather #7"),
                                               HasSubstr("ranks 0-1 (node1) have not entered collective #1")));
}

TEST_F(Hang, ADeadRankIsNamedByWhatOthersHaveSeen) {
  for (const int rank : {0, 1, 3}) waits_in(rank, 7, 2);
  has_done(2, 6, 3);
  record(2).written_by = 3;
  record(2).health = RankHealth::dead;
  record(3).sightings = {{2, RankHealth::dead}};
  const std::string dead =
      "rank 2 (node2) is dead: its process 4702 is gone; it has not entered all-gather #7 of block.7, for which "
      "ranks 0-1,3 have waited for 2 s; its last was all-gather #6 of block.6, done 3 s before";
  EXPECT_THAT(find_causes(scene_), ElementsAre(dead));
  lose(2);  // nobody could read its memory
  EXPECT_THAT(find_causes(scene_), ElementsAre("rank 2 (node2) is dead: its process is gone"));
}

TEST_F(Hang, AStoppedRankIsNamedAlsoInsideACollective) {
  for (int rank = 0; rank < 4; ++rank) waits_in(rank, 7, 12);
  record(1).written_by = 0;
  record(1).health = RankHealth::stopped;
  EXPECT_THAT(find_causes(scene_), ElementsAre("rank 1 (node1) is stopped: its process 4701 is held by SIGSTOP or a debugger; it entered "
                                               "all-gather #7 of block.7 12 s before"));
  EXPECT_THAT(hang_report(scene_), HasSubstr("rank 1 (node1): stopped; was in all-gather #7 of block.7"));
}

TEST_F(Hang, AHostThatLeftNothingIsNamedOnce) {
  for (const int rank : {0, 1}) waits_in(rank, 7, 25);
  record(0).sightings = {{2, RankHealth::silent}};
  lose(3);
  lose(2);
  EXPECT_THAT(find_causes(scene_), ElementsAre("host node2 (ranks 2-3) does not answer: it is down, or cut off from the others"));
  EXPECT_THAT(hang_report(scene_), HasSubstr("ranks 2-3 (node2): left no record"));
}

TEST_F(Hang, AHostThatLeftNoRecordIsNamedAlsoIfNobodyMissedIt) {
  waits_in(0, 7, 25);
  has_done(1, 6, 26);
  lose(3);
  lose(2);
  const std::string no_record = "host node2 (ranks 2-3) has left no record so far: it is down, cut off, or does not see the run's folder";
  // Its records may only be late: what is known comes first.
  EXPECT_THAT(find_causes(scene_), ElementsAre(HasSubstr("rank 1 (node1) has not entered all-gather #7"), no_record));
  waits_in(1, 7, 25);
  EXPECT_THAT(find_causes(scene_), ElementsAre(no_record));
  record(0).sightings = {{1, RankHealth::dead}};  // after a death little time is left for records
  lose(1);
  EXPECT_THAT(find_causes(scene_), ElementsAre(HasSubstr("rank 1 (node1) is dead")));
}

TEST_F(Hang, WithoutARunFolderOtherHostsCouldLeaveNoRecord) {
  waits_in(0, 7, 25);
  has_done(1, 6, 26);
  lose(3);
  lose(2);
  scene_.is_of_one_node = true;
  EXPECT_THAT(find_causes(scene_), ElementsAre(HasSubstr("rank 1 (node1) has not entered all-gather #7")));
}

TEST_F(Hang, ASilentRankWhoseNodeLivesIsNoHost) {
  for (const int rank : {0, 1, 3}) waits_in(rank, 7, 25);
  has_done(2, 6, 26);
  record(0).sightings = {{2, RankHealth::silent}};
  record(2).written_by = 3;
  record(2).health = RankHealth::stopped;
  EXPECT_THAT(find_causes(scene_), ElementsAre(HasSubstr("rank 2 (node2) is stopped: its process 4702")));
}

TEST_F(Hang, AHostThatIsCutOffIsNamed) {
  for (int rank = 0; rank < 4; ++rank) waits_in(rank, 7, 25);
  scene_.hosts[1] = record(1).host = "node3";
  record(0).sightings = record(1).sightings = {{2, RankHealth::silent}};
  record(2).sightings = {{0, RankHealth::silent}, {1, RankHealth::silent}};
  EXPECT_THAT(find_causes(scene_),
              ElementsAre("host node2 (ranks 2-3) is cut off from node1, node3, though its ranks are running: check its network link"));
  record(1).sightings = {};
  record(2).sightings = {{0, RankHealth::silent}};
  EXPECT_THAT(find_causes(scene_), ElementsAre(HasSubstr("host node1 (rank 0) is cut off from node2, though")));  // it may be either end
  scene_.hosts.clear();  // the list of hosts was not written: the records name theirs
  EXPECT_THAT(find_causes(scene_), ElementsAre(HasSubstr("host node1 (rank 0) is cut off from node2, though")));
}

TEST_F(Hang, ARankThatLivesIsNotLostWhateverOthersSaw) {
  for (int rank = 0; rank < 4; ++rank) waits_in(rank, 7, 25);
  record(0).sightings = {{2, RankHealth::silent}};
  EXPECT_THAT(find_causes(scene_),
              ElementsAre(HasSubstr("all of ranks 0-3 that are known have entered all-gather #7 of block.7, and it has "
                                    "not ended for 25 s: the network, or MPI")));
}

TEST_F(Hang, ASkippedCollectiveIsNamed) {
  for (const int rank : {0, 1, 2}) {
    waits_in(rank, 7, 31);
    adds(rank, 8, "all_gather", "block.8", "enqueued", 31);
  }
  waits_in(3, 6, 31);
  record(3).events.pop_back();
  adds(3, 6, "all_gather", "block.6", "done", 31);
  adds(3, 7, "all_gather", "block.8", "started", 30);
  group(3).enqueued = group(3).entered = 7;
  EXPECT_THAT(find_causes(scene_), ElementsAre("rank 3 (node2) has skipped all-gather #7 of block.7 (group 'shard') that ranks 0-2 have "
                                               "enqueued: its #7 is all-gather #7 of block.8, the others' #8"));
}

// Of two ranks none is the majority; what comes next tells.
TEST_F(Hang, OfTwoRanksTheOneThatIsAheadHasSkipped) {
  lose(3);
  lose(2);
  scene_.hosts.resize(2);
  for (const int rank : {0, 1}) {
    group(rank).members = "0-1";
    adds(rank, 1, "all_gather", rank == 0 ? "b" : "a", "started", 31);
    group(rank).enqueued = group(rank).entered = 1;
    group(rank).waits_s = 31;
  }
  adds(1, 2, "all_gather", "b", "enqueued", 31);
  EXPECT_THAT(find_causes(scene_),
              ElementsAre(HasSubstr("rank 0 (node1) has skipped all-gather #1 of a (group 'shard') that rank 1 (node1)")));
}

TEST_F(Hang, AnotherOrderIsNamed) {
  for (int rank = 0; rank < 4; ++rank) {
    adds(rank, 1, "all_gather", rank == 2 ? "b" : "a", "started", 31);
    adds(rank, 2, "all_gather", rank == 2 ? "a" : "b", "enqueued", 31);
    group(rank).enqueued = 2;
    group(rank).entered = 1;
    group(rank).waits_s = 31;
  }
  EXPECT_THAT(
      find_causes(scene_),
      ElementsAre("rank 2 (node2) has another order in group 'shard': all-gather #1 of b there, all-gather #1 of a on ranks 0-1,3"));
}

TEST_F(Hang, OtherBytesAreNamed) {
  for (int rank = 0; rank < 4; ++rank) waits_in(rank, 3, 31);
  record(1).events[2].bytes = 100;
  EXPECT_THAT(find_causes(scene_), ElementsAre("rank 1 (node1) gives 100 bytes in all-gather #3 of block.3 (group 'shard'), where ranks "
                                               "0,2-3 give 4096"));
}

// Ranks exchange texts of their own lengths outside the steps.
TEST_F(Hang, BytesOfHostExchangesMayDiffer) {
  for (int rank = 0; rank < 4; ++rank) {
    group(rank).name = HangRecord::kHostGroup;
    waits_in(rank, 3, 31);
  }
  record(1).events[2].bytes = 100;
  EXPECT_THAT(find_causes(scene_), ElementsAre(HasSubstr("all of ranks 0-3 that are known have entered all-gather #3 outside the steps")));
}

TEST_F(Hang, GroupsOfOneNameAreToldApartByMembersAndNumber) {
  for (const int rank : {0, 1}) {
    group(rank).members = "0-1";
    waits_in(rank, 3, 31);
  }
  for (const int rank : {2, 3}) {
    group(rank).members = "2-3";
    has_done(rank, 5, 31);
  }
  EXPECT_THAT(find_causes(scene_), ElementsAre(HasSubstr("all of ranks 0-1")));
  group(1).instance = 1;
  EXPECT_THAT(find_causes(scene_), ElementsAre(HasSubstr("rank 1 (node1) has not entered"), HasSubstr("rank 0 (node1) has not entered")));
}

TEST_F(Hang, AReportOfManyRanksIsAScreen) {
  scene_ = {};
  std::vector<int> all;
  for (int rank = 0; rank < 512; ++rank) all.push_back(rank);
  for (const int rank : all) {
    scene_.hosts.push_back("node" + std::to_string(rank / 8));
    HangRecord record;
    record.rank = record.written_by = rank;
    record.groups.push_back({.name = "world", .members = to_ranges(all)});
    scene_.records.push_back(record);
    if (rank % 2 == 0) waits_in(rank, 1 + rank / 2, 31);
  }
  const std::string report = hang_report(scene_);
  EXPECT_LE(std::ranges::count(report, '\n'), 24);
  EXPECT_THAT(report, HasSubstr("places more"));
}

TEST_F(Hang, RecordsSurviveTheirFiles) {
  waits_in(3, 2, 1.5);
  record(3).health = RankHealth::stopped;
  record(3).phase = RankPhase::closing;
  record(3).alarm = "rank 1 waits for 31 s (mesh.timeout)";
  record(3).sightings = {{2, RankHealth::dead}, {5, RankHealth::silent}};
  record(3).events[0].label = "a \"b\"\n\xff";
  const HangRecord read = parse_hang_record(to_json(record(3)), "file");
  EXPECT_EQ(to_json(read), to_json(record(3)));
  EXPECT_EQ(read.groups[0].members, "0-3");
  EXPECT_EQ(read.events[1].state, "started");
  EXPECT_EQ(read.sightings[1].health, RankHealth::silent);
}

TEST(HangRecord, WhatIsNoRecordIsRefused) {
  const std::string good = to_json(HangRecord{});
  const auto with = [&](const std::string& text, const std::string& other) {
    std::string json = good;
    json.replace(json.find(text), text.size(), other);
    return json;
  };
  EXPECT_NO_THROW((void)parse_hang_record(good, "file"));
  EXPECT_THROW((void)parse_hang_record(good.substr(0, good.size() / 2), "file"), ConfigError);
  EXPECT_THROW((void)parse_hang_record(with("\"rank\":0", "\"rank\":-1"), "file"), ConfigError);
  EXPECT_THROW((void)parse_hang_record(with("\"alive\"", "\"well\""), "file"), ConfigError);
  EXPECT_THROW((void)parse_hang_record(with("\"events\":[]", R"("events":[{"group":0}])"), "file"), ConfigError);
  const std::string of_group =
      R"("groups":[{"name":"g","instance":0,"members":"0-16777215,0-9","enqueued":0,"entered":0,"ended":0,"waits_s":0}])";
  EXPECT_THROW((void)parse_hang_record(with("\"groups\":[]", of_group), "file"), ConfigError);
}

TEST(HangRecord, RanksAreWrittenAsRanges) {
  EXPECT_EQ(to_ranges({}), "");
  EXPECT_EQ(to_ranges({3}), "3");
  EXPECT_EQ(to_ranges({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_EQ(to_ranges({0, 2, 1, 3}), "0,2,1,3");
  EXPECT_EQ(from_ranges("0-2,5,7-8"), (std::vector<int>{0, 1, 2, 5, 7, 8}));
  EXPECT_EQ(from_ranges(""), std::vector<int>{});
}

TEST_F(Hang, TheSummaryHasTheDeadAndThoseOfSilentHosts) {
  record(0).sightings = {{.rank = 1, .health = RankHealth::dead}, {.rank = 2, .health = RankHealth::silent}};
  lose(2);
  lose(1);
  const HangSummary summary = summary_of(scene_.records);
  EXPECT_EQ(summary.lost, (std::map<int, RankHealth>{{1, RankHealth::dead}, {2, RankHealth::silent}}));
  EXPECT_EQ(summary.num_alive, 2);
}

// The other node hears nothing of it; its own node knows that it is held, which is no reason to save and start again without it.
TEST_F(Hang, AStoppedRankIsNotLost) {
  record(0).sightings = {{.rank = 2, .health = RankHealth::silent}};
  record(2).health = RankHealth::stopped;
  record(2).written_by = 3;
  const HangSummary summary = summary_of(scene_.records);
  EXPECT_EQ(summary.lost, (std::map<int, RankHealth>()));
  EXPECT_EQ(summary.num_alive, 3);
}

}  // namespace
}  // namespace mica
