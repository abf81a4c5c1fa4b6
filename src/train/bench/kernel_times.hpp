// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: what each kind of task of a step takes, beside a copy and a product of its size.

#include <string>
#include <vector>

#include "bench_model.hpp"
#include "machine_bound.hpp"

namespace mica::train::bench {

/// One kind of task in a rank's step, all of its calls together.
struct KernelTime {
  std::string task;
  double calls = 0;
  double seconds = 0;
  double bytes = 0;            ///< of what the calls read and write, once each, scratch memory included
  double flops = 0;            ///< of its products; 0 for a task without any
  double copy_seconds = 0;     ///< that copies of as many bytes take, call by call
  double product_seconds = 0;  ///< that the fastest library takes for its products; 0 without any

  /// The larger of the two, as a share of the task's own time.
  [[nodiscard]] double share_of_limit() const;
};

struct StepTimes {
  double seconds = 0;               ///< a step, on rank 0
  std::vector<KernelTime> kernels;  ///< the longest first
  double copy_bytes_per_s = 0;      ///< the fastest of the copies of 1 MiB or more
  double product_flops_per_s = 0;   ///< the fastest of the products
  /// What no task accounts for.
  [[nodiscard]] double other_seconds() const;
};

/// Runs steps and times their tasks on rank 0, then copies and products of the same sizes with all ranks at once. The streams of the run
/// are inline and traced (log.trace). @collective
[[nodiscard]] StepTimes time_kernels(const App& app, BenchRun& run, const Config& config, std::int64_t warmup);

}  // namespace mica::train::bench
