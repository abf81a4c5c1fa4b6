// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: the hardware file of this machine, for mica-plan.

#include <string>

#include "mica/mpi/communicator.hpp"
#include "mica/tensor/kernels.hpp"

namespace mica::train::bench {

/// What gemm measured, per rank, while all ranks computed.
struct MeasuredComputing {
  double fp32_tflops = 0, bf16_tflops = 0;  ///< over the matrix products of a model; 0: not measured
  int threads = 1;
};
/// Before gemm measures for minutes. @throws ConfigError on any rank if write_computing() could not write the file
void check_computing_out(const std::string& path, const mpi::Communicator& world, bool has_all_dtypes);
/// Writes a hardware file (docs/planning.md, Hardware files) with these figures and with its own measurements of attention, memory and an
/// empty task. Figures of links are assumptions until comm measures them. @collective @throws ConfigError, IoError: on all ranks
void write_computing(const std::string& path, const mpi::Communicator& world, Kernels& kernels, const MeasuredComputing& measured);

/// What comm measured, in seconds of the slowest rank.
struct MeasuredLinks {
  std::int64_t bytes = 0;                     ///< of the unsharded side of the largest size
  double gather_s = 0, reduce_scatter_s = 0;  ///< of that size
  double small_gather_s = 0;                  ///< of a few bytes per rank: the latency of a call
};
/// The same for write_links(): also if there is no such file, or only one rank.
void check_links_out(const std::string& path, const mpi::Communicator& world);
/// Adds them to a file that write_computing() made: as the node's links if all ranks are on one node, else as the network.
/// @collective @throws ConfigError if there is no such file
void write_links(const std::string& path, const mpi::Communicator& world, const MeasuredLinks& measured);

}  // namespace mica::train::bench
