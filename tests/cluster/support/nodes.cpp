// SPDX-License-Identifier: Apache-2.0
#include "cluster/support/nodes.hpp"

#include <chrono>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "fault/support/training.hpp"
#include "support/paths.hpp"

namespace mica::test {

std::vector<std::string> cluster(const std::vector<std::string>& words) {
  std::vector<std::string> command{test::source_folder() + "/scripts/cluster/cluster.sh"};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

std::string on_cluster(const std::vector<std::string>& words, double limit_s) {
  const Finished seen = run(cluster(words), limit_s);
  EXPECT_EQ(seen.status, 0) << seen.output;
  return seen.output;
}

std::map<std::string, Traffic> traffic_of_nodes() {
  std::map<std::string, Traffic> found;
  std::istringstream words(on_cluster({"counters"}));
  std::string node, word;
  Traffic traffic;
  while (words >> node >> word >> traffic.sent >> word >> traffic.received >> word >> traffic.frames_sent) found[node] = traffic;
  return found;
}

std::map<std::string, std::int64_t> tcp_counters_of(const std::string& node) {
  std::map<std::string, std::int64_t> found;
  // A line of names is followed by one of values; both begin with the same word.
  std::istringstream lines(on_cluster({"on", node, "grep", "-h", "^Tcp", "/proc/net/snmp", "/proc/net/netstat"}));
  for (std::string name_line, value_line; std::getline(lines, name_line) && std::getline(lines, value_line);) {
    std::istringstream names(name_line), values(value_line);
    std::string name;
    names >> name;
    values >> name;
    for (std::int64_t value = 0; names >> name && values >> value;) found[name] = value;
  }
  return found;
}

bool eventually(double limit_s, const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return true;
}

void expect_each_step_once(const std::string& run_folder) {
  std::int64_t expected = 0;
  for (const StepLine& line : step_lines(run_folder)) ASSERT_EQ(line.step, ++expected) << run_folder;
}

}  // namespace mica::test
