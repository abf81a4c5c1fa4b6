// SPDX-License-Identifier: Apache-2.0
// Training over 2 nodes with 2 ranks each; runs on the head of a cluster whose links carry 200 Mbit/s (CMakeLists.txt).

#include "fault/support/training.hpp"

#include <cstdio>
#include <regex>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/support/nodes.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanksPerNode = 2;

class Cluster : public ::testing::Test {
 protected:
  Cluster() {
    write_tokens(folder_ / "tokens.bin", 20000);
    write_text(folder_ / "run.cfg", "[model]\ntype = mlp\nlayers = 2\nwidth = 256\nvocab_size = 16\n[data]\ntrain = " +
                                        (folder_ / "tokens.bin") + "\n[train]\nmicro_batch = 2\nseq_len = 16\n");
  }
  /// Its output.
  [[nodiscard]] std::string train(const std::string& run, const std::vector<std::string>& flags) const {
    std::vector<std::string> words{"mpirun", std::to_string(kRanksPerNode), program("mica-train"), folder_ / "run.cfg",
                                   "--run.dir=" + (folder_ / run)};
    words.insert(words.end(), flags.begin(), flags.end());
    return on_cluster(words);
  }
  TemporaryFolder folder_;
};

TEST_F(Cluster, HybridShardByNodeHasTheLossesOfFullShard) {
  const std::vector<std::string> common{"--train.steps=8", "--train.deterministic=true"};
  const auto with_strategy = [&](const std::string& strategy) {
    std::vector<std::string> flags = common;
    flags.push_back("--fsdp.strategy=" + strategy);
    return train(strategy, flags);
  };
  EXPECT_THAT(with_strategy("full_shard"), HasSubstr("mesh 1 x 4 (replicate x shard), shard groups: {0,1,2,3} on node0, node1"));
  // The node is the default.
  EXPECT_THAT(with_strategy("hybrid_shard"), HasSubstr("mesh 2 x 2 (replicate x shard), shard groups: {0,1} on node0; {2,3} on node1"));
  const std::vector<StepLine> full = step_lines(folder_ / "full_shard");
  EXPECT_EQ(full.size(), 8u);
  EXPECT_EQ(full, step_lines(folder_ / "hybrid_shard"));
}

// Groups are of places in the mesh, which are sorted by node, whatever MPI's ranks are; those are told.
TEST_F(Cluster, RanksThatAreDealtOutByNodeShardWithinNodesToo) {
  const auto dealt_out = [](const std::vector<std::string>& command) {
    std::vector<std::string> words{"run", "mpirun", "-np", "4", "--host", "node0:2,node1:2", "--map-by", "node", "--bind-to", "none"};
    words.insert(words.end(), command.begin(), command.end());
    return on_cluster(words);
  };
  EXPECT_THAT(dealt_out({"bash", "-c", "echo rank $OMPI_COMM_WORLD_RANK is on $(hostname)"}),
              AllOf(HasSubstr("rank 1 is on node1\n"), HasSubstr("rank 2 is on node0\n")));
  const std::string output = dealt_out(
      {program("mica-train"), folder_ / "run.cfg", "--run.dir=" + (folder_ / "dealt"), "--train.steps=2", "--fsdp.strategy=hybrid_shard"});
  EXPECT_THAT(output, HasSubstr("shard groups: {0,2} on node0; {1,3} on node1"));
}

/// Bytes of gradients that a node's ranks send to the other node in a step, from the plan's table of units: each rank all-reduces
/// its fp32 shard with the one rank of the other node that holds the same, which takes 2 * (2 - 1) / 2 times its bytes.
std::int64_t planned_bytes(const std::string& output) {
  static const std::regex kUnit("^ *\\S+ +[0-9]+ +([0-9]+) +[0-9]+ +hybrid_shard +fp32 +fp32$");
  std::int64_t elements_per_rank = 0;
  std::istringstream lines(output);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, match, kUnit)) elements_per_rank += std::stoll(match[1]);
  }
  static const std::regex kSent("all_reduce +replicate/all_reduce +2 +[0-9]+ +([0-9.]+) MiB");
  EXPECT_TRUE(std::regex_search(output, match, kSent)) << output;
  EXPECT_NEAR(std::stod(match[1]) * 1048576, static_cast<double>(elements_per_rank * 4), 0.006 * 1048576) << "the plan's own sum";
  return elements_per_rank * 4 * kRanksPerNode;
}

// The difference of two runs: what happens at their starts and ends drops out. Headers of Ethernet, IP and TCP, 66 bytes a segment, are
// taken off, since a busy machine sends more segments; a few of these stay on their node, so that a little too much is taken off.
TEST_F(Cluster, HybridShardSendsThePlansGradientBytesAndNoMore) {
  const auto sent_so_far = [] {
    std::map<std::string, std::int64_t> bytes;
    for (const auto& [node, traffic] : traffic_of_nodes()) bytes[node] = traffic.sent - 66 * traffic.frames_sent;
    return bytes;
  };
  std::int64_t planned = 0;
  const auto sent_by = [&](int steps) {
    const auto before = sent_so_far();
    planned =
        planned_bytes(train("of-" + std::to_string(steps), {"--fsdp.strategy=hybrid_shard", "--train.steps=" + std::to_string(steps)}));
    std::map<std::string, double> sent;
    for (const auto& [node, bytes] : sent_so_far()) sent[node] = static_cast<double>(bytes - before.at(node));
    return sent;
  };
  const auto few = sent_by(4);
  const auto many = sent_by(24);
  ASSERT_EQ(few.size(), 2u);
  for (const auto& [node, sent] : many) {
    const double of_a_step = (sent - few.at(node)) / 20;
    EXPECT_GE(of_a_step, 0.99 * static_cast<double>(planned)) << node;
    EXPECT_LE(of_a_step, 1.01 * static_cast<double>(planned)) << node;
    std::printf("%s: %.0f bytes a step without headers, %.4f of the plan's %ld\n", node.c_str(), of_a_step,
                of_a_step / static_cast<double>(planned), static_cast<long>(planned));
  }
}

// As a cable does; a few that are sent again may come late. TCP takes packets that were overtaken for lost, sends them again and slows
// down: where several CPUs received them, one in 350 was.
TEST_F(Cluster, LinksKeepPacketsInOrder) {
  on_cluster({"rate", "1gbit"});
  static_cast<void>(train("fast", {"--train.steps=40"}));
  on_cluster({"rate", "200mbit"});
  for (const auto& [node, traffic] : traffic_of_nodes()) {
    const std::map<std::string, std::int64_t> tcp = tcp_counters_of(node);
    const std::int64_t out_of_order = tcp.at("TCPSACKReorder") + tcp.at("TCPTSReorder");
    EXPECT_GE(tcp.at("OutSegs"), 100'000) << node;
    EXPECT_LE(out_of_order, tcp.at("OutSegs") / 10'000) << node;
    std::printf("%s: %ld segments, %ld found out of order, %ld sent again\n", node.c_str(), static_cast<long>(tcp.at("OutSegs")),
                static_cast<long>(out_of_order), static_cast<long>(tcp.at("RetransSegs")));
  }
}

}  // namespace
}  // namespace mica::test
