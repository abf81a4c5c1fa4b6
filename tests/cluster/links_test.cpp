// SPDX-License-Identifier: Apache-2.0
// A bad network link between three nodes is named; runs on the head of a cluster whose links carry 200 Mbit/s (CMakeLists.txt).

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/support/nodes.hpp"
#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Links : public ::testing::Test {
 protected:
  Links() {
    write_tokens(folder_ / "tokens.bin", 4000);
    write_text(folder_ / "run.cfg", "[model]\ntype = mlp\nlayers = 2\nwidth = 16\nvocab_size = 16\n[data]\ntrain = " +
                                        (folder_ / "tokens.bin") + "\n[train]\nmicro_batch = 2\nseq_len = 16\n[run]\ndir = " + run_ + "\n");
  }
  [[nodiscard]] std::vector<std::string> train(const std::vector<std::string>& flags) const {
    std::vector<std::string> words{"mpirun", "1", program("mica-train"), folder_ / "run.cfg"};
    words.insert(words.end(), flags.begin(), flags.end());
    return cluster(words);
  }
  TemporaryFolder folder_;
  std::string run_ = folder_ / "run";
};

TEST_F(Links, ALinkAtAHundredthOfItsSpeedIsNamedAtTheStart) {
  on_cluster({"rate", "2mbit", "node1"});
  const Finished slow = run(train({"--train.steps=1"}));
  EXPECT_EQ(slow.status, 0) << slow.output;
  // 2 Mbit/s are 0.25 MB/s; what is timed takes more or less of the burst that the rate allows.
  EXPECT_THAT(slow.output, ContainsRegex("warning: the network link of node1 \\(rank 1\\) carries 0\\.[1-4][0-9]* MB/s in and 0\\.[1-4]"));
  on_cluster({"rate", "200mbit"});
  const Finished good = run(train({"--train.steps=1", "--run.dir=" + folder_ / "good"}));
  EXPECT_EQ(good.status, 0) << good.output;
  EXPECT_THAT(good.output, Not(HasSubstr("warning: the network link")));
}

// All ranks live, and all leave records, since they share a disk that is not on this network.
TEST_F(Links, ALinkThatIsCutIsNamed) {
  Child job(train({"--train.steps=1000000", "--mesh.timeout=4"}));
  ASSERT_TRUE(job.wait_for("step     10/")) << job.wait(1).output;
  on_cluster({"cut", "node2"});
  const std::string named = "host node2 (rank 2) is cut off from node0, node1, though its ranks are running: check its network link";
  const auto log = [&] { return read_text(run_ + "/log.txt"); };
  EXPECT_TRUE(eventually(4 + 5 + 5, [&] { return log().find(named) != std::string::npos; })) << log();
  (void)job.wait(0);
}

}  // namespace
}  // namespace mica::test
