// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: the models that its benchmarks measure, and the data they see.

#include <optional>
#include <string>

#include "mica/mpi/communicator.hpp"
#include "mica/train/config.hpp"
#include "mica/train/setup.hpp"
#include "mica/train/step_runner.hpp"

#include "command_line.hpp"

namespace mica::train::bench {

/// "char-tiny, char-10m, ...".
[[nodiscard]] std::string model_names();

/// A run of a named GPT-2 or Llama.
struct RunOptions {
  std::string model;
  std::int64_t batch = 0, seq = 0, steps = 1, warmup = 2;
  std::string dtype = "fp32";
  std::string strategy = "full_shard";
  bool activation_checkpointing = false;
  std::vector<std::string> overrides;  ///< "--section.key=value", as for mica-train
};
/// The flags of train and kernels that say what to run.
void add_run_flags(po::options_description& flags, RunOptions& run);
/// Moves the keys of mica-train, such as --fsdp.wrap=none, from the arguments to run.overrides. @returns the other arguments
[[nodiscard]] Arguments take_keys(const Arguments& arguments, RunOptions& run);
/// The checked config of the run: AdamW, lr 3e-4, weight decay 0.1, clipping at 1. @throws ConfigError
[[nodiscard]] Config make_config(const RunOptions& options);

/// The device, with its warnings on standard error: ranks whose threads take turns measure nothing. @collective
[[nodiscard]] Device make_device(const App& app, const Config& config);

/// FLOPs of causal attention's products in a rank's step, forward and backward, nothing computed twice.
[[nodiscard]] double attention_flops(const Config& config);

/// A file of random tokens, the same on every rank that makes it; the destructor deletes it.
class RandomTokenFile {
 public:
  RandomTokenFile(const Config& config, int num_ranks, int rank);
  ~RandomTokenFile();
  RandomTokenFile(const RandomTokenFile&) = delete;
  RandomTokenFile& operator=(const RandomTokenFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A model on all ranks with random tokens, initialized and ready for its first step.
class BenchRun {
 public:
  /// @param config  outlives it. @throws ConfigError on all ranks. @collective
  BenchRun(const App& app, const Config& config);

  Device device;
  data::BatchPlan plan;
  Datasets datasets;
  ShardedModel model;
  StepRunner runner;
};

}  // namespace mica::train::bench
