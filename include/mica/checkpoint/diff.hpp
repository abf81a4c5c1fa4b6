// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"

namespace mica::checkpoint {

/// One parameter, or one kind of its optimizer state, in two checkpoints.
struct DiffEntry {
  enum class Result { equal, different, other_shape, only_in_a, only_in_b };
  std::string parameter;
  std::string kind;
  Shape shape_a{0}, shape_b{0};
  Result result = Result::equal;
  std::int64_t num_different = 0;  ///< elements whose bits differ
  double max_difference = 0;       ///< largest |a - b|; NaN if one side is NaN where bits differ
  std::int64_t max_at = 0;         ///< flat index of that element, or of the first such NaN
};

struct DiffReport {
  std::vector<DiffEntry> entries;  ///< in A's module order, a parameter's kinds together; then those that only B has
  /// The optimizers' names or step counts differ, or those of a parameter.
  std::string optimizer_difference;
  /// Other state of the run that differs, one text per number: "loss_scale: 65536 in A, none in B".
  std::vector<std::string> scalar_differences;

  [[nodiscard]] bool is_equal() const;
  [[nodiscard]] std::int64_t num_equal() const;
};

/// Compares two checkpoints bit by bit, parameter by parameter, with the optimizer's step counts and the run's other numbers (a
/// loss scale). They may have been written by different numbers of ranks: elements are found through the tables of pieces, and
/// every block is checked before it is compared. Memory: a few blocks. Values stored in different dtypes (an ignored parameter
/// in bf16) are compared by value.
/// One or both may be Hugging Face folders, whose values are converted to f32 first; then only parameters are compared.
/// @param path_a, path_b  as for open_model() (model.init_from).
/// @param progress  called with elements done and total; may be empty.
/// @throws ConfigError if there is nothing at a path; CheckpointError if one of them is damaged, or its tables do not list every element
/// exactly once.
[[nodiscard]] DiffReport diff(const std::string& path_a, const std::string& path_b,
                              const std::function<void(std::int64_t, std::int64_t)>& progress = {});

}  // namespace mica::checkpoint
