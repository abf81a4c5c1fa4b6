// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mica/core/dtype.hpp"

namespace mica::plan {

/// What an attention kernel reaches: its rate for long sequences x T / (T + half_tokens) on sequences of T tokens. Below its diagonal a
/// causal attention has less to do in short sequences, and each of its tiles costs the same.
struct AttentionRate {
  double forward_tflops = 0, backward_tflops = 0;  ///< of long sequences
  double half_tokens = 0;                          ///< the length that reaches half of them
};

/// TFLOP/s by the operands' dtype.
struct Rates {
  double fp32 = 0, tf32 = 0, bf16 = 0;  ///< bf16 holds for a GPU's fp16 too
};

/// A protocol of a communication library: the share of a link's bandwidth that it reaches, and the latency of a call and of each step of a
/// ring.
struct Protocol {
  double bandwidth_share = 1;
  double base_us = 0, in_node_step_us = 0, network_step_us = 0;
};

/// One rank's processor and the links between ranks, from which a simulated step's time follows. Read from a JSON file in which every
/// constant has a source (docs/planning.md, Hardware files).
struct Hardware {
  std::string name;
  bool is_gpu = true;
  int ranks_per_node = 8;
  int threads = 1;          ///< per rank, on the host; on a CPU they compute
  double memory_gib = 0;    ///< per rank
  double reserved_gib = 0;  ///< the part of it that the system and libraries take
  Rates peak_tflops;        ///< the vendor's, for MFU
  Rates product_tflops;     ///< what large products reach
  AttentionRate attention;  ///< a GPU's: with heads of 128
  int processors = 0;       ///< streaming multiprocessors, which share a product's tiles; 0: products of all shapes reach the same rate
  double memory_gb_s = 0;
  double kernel_us = 0;  ///< the minimum time of a task
  double host_task_us = 0, host_wait_us = 0;
  double in_node_gb_s = 0;  ///< bandwidth between a rank and its node's other ranks, in each direction
  double network_gbps = 0;  ///< bandwidth of a node's network in each direction, in Gb/s
  double network_efficiency = 1;
  std::vector<Protocol> protocols;  ///< the library takes the fastest for each call
  double compute_beside_communication = 1, communication_beside_compute = 1;
  double storage_gb_s = 0;     ///< bandwidth with which a node writes a checkpoint
  double rank_mtbf_hours = 0;  ///< mean time between failures of one rank
  double restart_s = 0;        ///< from a failure until training continues
};

/// The rate, in TFLOP/s, for operands of a dtype. CPUs compute fp16 in fp32, and have no TF32.
/// @param rates  the hardware's peak_tflops or product_tflops
/// @param tf32  fp32 products are computed in TF32
[[nodiscard]] double tflops_for(DType dtype, bool tf32, const Rates& rates, const Hardware& hardware);

/// Names that find_hardware() knows: "h100-80".
[[nodiscard]] std::vector<std::string> hardware_names();
/// The JSON text of one of them; empty if there is none.
[[nodiscard]] std::string_view hardware_text(std::string_view name);

/// @throws ConfigError naming file and key: not JSON, a key that is missing, unknown or out of range, a constant without a source
[[nodiscard]] Hardware parse_hardware(std::string_view text, const std::string& file_name);

/// Hardware that comes with Mica, by its name, or a file. @throws ConfigError naming the known names
[[nodiscard]] Hardware find_hardware(const std::string& name_or_file);

}  // namespace mica::plan
