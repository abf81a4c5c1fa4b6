// SPDX-License-Identifier: Apache-2.0
// Starts over nodes that cannot reach each other, while the head reaches both: a firewall, or a cable in the wrong switch. Runs on the
// head of a cluster (CMakeLists.txt).
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/support/nodes.hpp"
#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LaunchOverNodes : public ::testing::Test {
 protected:
  LaunchOverNodes() {
    write_tokens(folder_ / "tokens.bin", 4000);
    write_text(folder_ / "run.cfg",
               "[model]\ntype = mlp\nlayers = 2\nwidth = 16\nvocab_size = 16\n[data]\ntrain = " + (folder_ / "tokens.bin") +
                   "\n[train]\nsteps = 1\nmicro_batch = 2\nseq_len = 16\n[run]\ndir = " + (folder_ / "run") + "\n");
  }
  ~LaunchOverNodes() override { separate("off"); }
  /// Whether packets between the nodes are dropped; those to and from the head pass.
  static void separate(const std::string& on_or_off) {
    for (const char* port : {"port0", "port1"}) {
      EXPECT_EQ(run({"bridge", "link", "set", "dev", port, "isolated", on_or_off}).status, 0);
    }
  }
  [[nodiscard]] Finished train() const {
    return run(cluster({"mpirun", "2", program("mica-train"), folder_ / "run.cfg", "--log.level=debug"}));
  }
  TemporaryFolder folder_;
};

TEST_F(LaunchOverNodes, NodesThatCannotReachEachOtherAreNamed) {
  separate("on");
  const Finished seen = train();
  EXPECT_EQ(seen.status, 3) << seen.output;
  ASSERT_GE(seen.error_lines().size(), 1u) << seen.output;  // one of each rank that finds it before the job has ended
  for (const std::string part : {"cannot reach rank ", "node0", "node1", " at 10.77.0.1", "from eth0 (10.77.0.1", "no answer within 1 s",
                                 "MPI would wait for ever", "open the network"}) {
    EXPECT_THAT(seen.error_lines()[0], HasSubstr(part));
  }
  EXPECT_THAT(seen.output, Not(HasSubstr("answer over TCP")));
  EXPECT_LT(seen.seconds, 20) << "it takes 5; a cut connection would keep MPI for minutes";
  separate("off");
  EXPECT_EQ(train().status, 0);
}

TEST_F(LaunchOverNodes, GoodNodesAreTimedAndLeftInPeace) {
  const Finished seen = train();
  EXPECT_EQ(seen.status, 0) << seen.output;
  EXPECT_THAT(seen.output, HasSubstr("node speed "));
  std::istringstream lines(seen.output);
  for (std::string line; std::getline(lines, line);) {
    // Another program may really have taken one node's core while both were timed.
    if (line.find("every step will wait for it") != std::string::npos) continue;
    EXPECT_THAT(line, Not(HasSubstr("warning:")));
  }
}

}  // namespace
}  // namespace mica::test
