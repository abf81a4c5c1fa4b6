// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fault/support/child.hpp"

namespace mica::test {

[[nodiscard]] std::string program(const std::string& name);  ///< its path

/// A raw token file (.bin, uint16). @param num_tokens  made up, below 256.
void write_tokens(const std::string& path, std::int64_t num_tokens);
/// One token of it is replaced.
void overwrite_token(const std::string& path, std::int64_t position, std::uint16_t id);

void write_text(const std::string& path, const std::string& text);
[[nodiscard]] std::string read_text(const std::string& path);

/// mica-train under mpirun.
[[nodiscard]] std::vector<std::string> training(int num_ranks, const std::string& config, const std::vector<std::string>& flags);

/// Every file below a folder: path -> bytes.
[[nodiscard]] std::map<std::string, std::string> contents_of(const std::string& folder);
/// Names of the complete checkpoints of a run, ascending.
[[nodiscard]] std::vector<std::string> checkpoints_of(const std::string& run_folder);
/// Flips some bits in the middle of a file.
void damage(const std::string& path);

/// What must be the same in two runs, from metrics.jsonl.
struct StepLine {
  std::int64_t step = 0;
  double loss = 0, lr = 0, grad_norm = 0;
  friend bool operator==(const StepLine&, const StepLine&) = default;
};
/// Lines that are whole, in file order.
[[nodiscard]] std::vector<StepLine> step_lines(const std::string& run_folder);
/// N of the first progress line "step N/M" in an output; 0 for none.
[[nodiscard]] std::int64_t first_progress_step(const std::string& output);

}  // namespace mica::test
