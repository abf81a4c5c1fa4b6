// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "mica/plan/hardware.hpp"

namespace mica::plan {

/// How a program's kernels do what a task of Mica does.
struct KernelCost {
  double bandwidth = 1;  ///< the share of Hardware::memory_gb_s that they reach
  double extra = 0;      ///< bytes that further kernels move for it, as a multiple of the task's own (a product's: its operands')
};

/// The kernels of a program that trains with Mica's schedule and layers, which are those of PyTorch's FSDP: Mica's own on a GPU ("mica"),
/// or another's, for comparisons with measurements of it; its attention and its kernels between products are of another speed then, and
/// most programs fuse no layers. Read from a JSON file, in which every constant has a source (docs/planning.md, Software files).
struct Software {
  std::string name;
  bool fuses_layers = false;                       ///< a layer with its neighbour, as Mica does [Note: fused neighbours]
  std::map<std::string, AttentionRate> attention;  ///< by Hardware::name; empty: a GPU's own
  std::map<std::string, KernelCost> kernels;       ///< by the name of Mica's task; the others move their bytes at full bandwidth

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
