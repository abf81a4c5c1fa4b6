// SPDX-License-Identifier: Apache-2.0
// A node that dies without a word is named by the watchdogs of the others, who ask it over TCP; runs on the head of a cluster of two nodes
// (CMakeLists.txt).

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/support/nodes.hpp"
#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(Hang, ACrashedNodeIsNamed) {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  fs::create_directory(run);
  const std::string ranks = (fs::canonical("/proc/self/exe").parent_path() / "fault_hanging_ranks").string();
  Child job(cluster({"mpirun", "2", ranks, "computes", run, "4000"}));
  ASSERT_TRUE(job.wait_for("goes wrong")) << job.wait(1).output;
  on_cluster({"crash", "node1"});
  // mpirun prints no more once a node is silent.
  const std::string named = "host node1 (ranks 2-3) does not answer: it is down, or cut off from the others";
  EXPECT_TRUE(eventually(4 + 5 + 5, [&] { return read_text(run + "/log.txt").find(named) != std::string::npos; }));
  const Finished inspected = test::run({program("mica-inspect"), "hang", run});
  EXPECT_THAT(inspected.output, HasSubstr(named));
  (void)job.wait(0);
}

}  // namespace
}  // namespace mica::test
