// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace mica::plan {

/// What an attention kernel reaches: long_tflops x T / (T + half_tokens) on sequences of T tokens. Below its diagonal a causal attention
/// has less to do in short sequences, and each of its tiles costs the same.
struct AttentionRate {
  double forward_tflops = 0, backward_tflops = 0;  ///< of long sequences
  double half_tokens = 0;                          ///< the length that reaches half of them
};

/// How another program's kernels do what a task of Mica does.
struct KernelCost {
  double bandwidth = 1;  ///< the share of Hardware::memory_gb_s that they reach
  double extra = 0;      ///< bytes that further kernels move for it, as a multiple of the task's own (a product's: its operands')
};

/// A program that trains with Mica's schedule and layers, which are those of PyTorch's FSDP, but with kernels of its own: its attention and
/// its kernels between products are of another speed, and most programs fuse no layers. For comparisons with measurements of that program.
/// Read from a JSON file, in which every constant has a source (docs/planning.md, Software files).
struct Software {
  std::string name;
  bool fuses_layers = false;                       ///< a layer with its neighbour, as Mica does [Note: fused neighbours]
  std::map<std::string, AttentionRate> attention;  ///< by Hardware::name
  std::map<std::string, KernelCost> kernels;       ///< by the name of Mica's task; the others cost what Mica's do

  /// @throws ConfigError naming the hardware that there is
  [[nodiscard]] const AttentionRate& attention_on(const std::string& hardware_name) const;
};

/// Names that find_software() knows: "pytorch".
[[nodiscard]] std::vector<std::string> software_names();
/// @throws ConfigError naming file and key: not JSON, a key that is missing, unknown or out of range, a task that Mica does not have
[[nodiscard]] Software parse_software(std::string_view text, const std::string& file_name);
/// One that comes with Mica, by its name, or a file. @throws ConfigError naming those that there are
[[nodiscard]] Software find_software(const std::string& name_or_file);

}  // namespace mica::plan
