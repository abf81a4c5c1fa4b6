// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mica/core/dtype.hpp"

namespace mica::plan {

/// Teraflops by operands.
struct Rates {
  double fp32 = 0, tf32 = 0, bf16 = 0;  ///< bf16: and fp16
};

/// How a communication library moves data: the share of a link's bandwidth that it reaches, and what a call and a step of a ring take.
struct Protocol {
  double bandwidth_share = 1;
  double base_us = 0, in_node_step_us = 0, network_step_us = 0;
};

/// One rank's processor and the links between ranks: what a simulated step's time is made of. Read from a JSON file, in which every
/// constant has a source (docs/planning.md, Hardware files).
struct Hardware {
  std::string name;
  bool is_gpu = true;
  int ranks_per_node = 8;
  int threads = 1;          ///< of a rank's host; on a CPU those that compute
  double memory_gib = 0;    ///< of a rank
  double reserved_gib = 0;  ///< of it, what the system and libraries take
  Rates peak_tflops;        ///< the vendor's, for MFU
  Rates product_tflops;     ///< what large products reach
  double attention_forward_tflops = 0, attention_backward_tflops = 0;
  int processors = 0;  ///< that share a product's tiles (streaming multiprocessors); 0: products of any shape are as fast
  double memory_gb_s = 0;
  double kernel_us = 0;  ///< the least that a task takes
  double host_task_us = 0, host_wait_us = 0;
  double in_node_gb_s = 0;  ///< what a rank sends to, and receives from, ranks of its node
  double network_gbps = 0;  ///< what a node sends, and receives, in Gb/s
  double network_efficiency = 1;
  std::vector<Protocol> protocols;  ///< the library takes the fastest for each call
  double compute_beside_communication = 1, communication_beside_compute = 1;
  double storage_gb_s = 0;     ///< what a node writes to a checkpoint
  double rank_mtbf_hours = 0;  ///< between failures of one rank
  double restart_s = 0;        ///< from a failure until steps are made again
};

/// Names that find_hardware() knows: "h100-80".
[[nodiscard]] std::vector<std::string> hardware_names();
/// The JSON text of one of them; empty if there is none.
[[nodiscard]] std::string_view hardware_text(std::string_view name);

/// @throws ConfigError naming file and key: not JSON, a key that is missing, unknown or out of range, a constant without a source
[[nodiscard]] Hardware parse_hardware(std::string_view text, const std::string& file_name);

/// One that comes with Mica, by its name, or a file. @throws ConfigError naming those that there are
[[nodiscard]] Hardware find_hardware(const std::string& name_or_file);

}  // namespace mica::plan
