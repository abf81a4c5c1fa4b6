// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "mica/tensor/cuda_kernels.hpp"

namespace mica::train {

/// "attention by Mica's own kernels (forward, B=8 T=1024 H=12 D=64 fp32): cuDNN's attention is for bf16 and fp16, not for fp32"
[[nodiscard]] std::string slow_path_text(const SlowPath& path);

/// Reports each kind of slow path once, when it first occurs.
class SlowPathNotices {
 public:
  /// A line for each kind of slow path that is new since the last call, with its first shape and the number of other shapes.
  /// @param paths  slow_paths() of the kernels, a list that only grows
  [[nodiscard]] std::vector<std::string> new_lines(std::span<const SlowPath> paths);

 private:
  std::size_t num_seen_ = 0;
  std::set<std::string> told_;
};

}  // namespace mica::train
