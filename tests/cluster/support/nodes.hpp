// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace mica::test {

/// scripts/cluster/cluster.sh WORDS...
[[nodiscard]] std::vector<std::string> cluster(const std::vector<std::string>& words);
/// Runs it, expects status 0, and gives its output.
std::string on_cluster(const std::vector<std::string>& words, double limit_s = 300);

/// What a node's interface has counted: bytes, and frames of up to 64 KiB, which have one header of 66 bytes each.
struct Traffic {
  std::int64_t sent = 0, received = 0, frames_sent = 0;
};
[[nodiscard]] std::map<std::string, Traffic> traffic_of_nodes();

/// What the kernel of a node has counted for TCP since it was booted: "OutSegs", "TCPSACKReorder" (man 5 proc, /proc/net/snmp, netstat).
[[nodiscard]] std::map<std::string, std::int64_t> tcp_counters_of(const std::string& node);

/// Whether the condition becomes true within the limit.
[[nodiscard]] bool eventually(double limit_s, const std::function<bool()>& condition);

/// Rows of metrics.jsonl: steps 1 to N, each once and in order.
void expect_each_step_once(const std::string& run_folder);

}  // namespace mica::test
