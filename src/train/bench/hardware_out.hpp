// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: the hardware file of this machine, for mica-plan.

#include <string>

#include "mica/mpi/communicator.hpp"
#include "mica/tensor/kernels.hpp"

namespace mica::train::bench {

/// What gemm measured, of a rank while all ranks computed.
struct MeasuredComputing {
  double fp32_tflops = 0, bf16_tflops = 0;  ///< of the products of a model, by their FLOPs; 0: not measured
  int threads = 1;
};
/// Writes a hardware file (docs/planning.md, Hardware files) with that, and with what it measures besides: attention, memory, the least
/// that a task takes. Links keep assumptions until comm has measured them. @collective @throws ConfigError, IoError: on all ranks
void write_computing(const std::string& path, const mpi::Communicator& world, Kernels& kernels, const MeasuredComputing& measured);

/// What comm measured, in seconds of the slowest rank.
struct MeasuredLinks {
  std::int64_t bytes = 0;                     ///< of the unsharded side of the largest size
  double gather_s = 0, reduce_scatter_s = 0;  ///< of that size
  double small_gather_s = 0;                  ///< of a few bytes a rank: what a call takes
};
/// Puts them into a file that write_computing() made: of the node's links where all ranks are on one node, else of the network.
/// @collective @throws ConfigError if there is no such file
void write_links(const std::string& path, const mpi::Communicator& world, const MeasuredLinks& measured);

}  // namespace mica::train::bench
