// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: the models that train and checkpoint measure, and the data they see.

#include <string>

#include "mica/mpi/communicator.hpp"
#include "mica/train/config.hpp"

namespace mica::train::bench {

/// "char-tiny, char-10m, ...".
[[nodiscard]] std::string model_names();

/// A run of a named GPT-2 or Llama.
struct RunOptions {
  std::string model;
  std::int64_t batch = 0, seq = 0, steps = 1;
  std::string dtype = "fp32";
  std::string strategy = "full_shard";
  bool activation_checkpointing = false;
  std::vector<std::string> overrides;  ///< "--section.key=value", as for mica-train
};
/// The checked config of the run: AdamW, lr 3e-4, weight decay 0.1, clipping at 1. @throws ConfigError
[[nodiscard]] Config make_config(const RunOptions& options);

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

}  // namespace mica::train::bench
