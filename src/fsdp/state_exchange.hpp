// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "mica/fsdp/state_arrays.hpp"

namespace mica::fsdp {

/// Elements [run.begin, run.end) of an array that a world rank has in one of its dicts, at run.offset of the tensor there.
struct FoundRun {
  std::int64_t array;  ///< in StateArrays::all
  Run run;
  std::int64_t rank;
  std::int64_t dict;

  friend bool operator==(const FoundRun&, const FoundRun&) = default;
};

/// The elements of the arrays that this rank's dicts have. @throws ConfigError naming a key of another shape or dtype.
[[nodiscard]] std::vector<FoundRun> find_runs(const StateArrays& arrays, std::span<const StateDict> dicts, int rank);

/// Chooses the source of each element, so that every element of every array comes exactly once: from the run that reaches
/// furthest, then from the lowest rank. Arrays that no dict has are left out and named in `missing`.
/// @param found  of all ranks.  @throws ConfigError naming an array of which only a part was found, and rows that are missing.
[[nodiscard]] std::vector<FoundRun> choose_runs(const StateArrays& arrays, std::vector<FoundRun> found, std::vector<std::string>& missing);

/// Brings the chosen runs to all ranks, one broadcast for each unit and source, and stores this rank's part.
/// @collective over the world, with equal arguments except `dicts`
void exchange(const StateArrays& arrays, const std::vector<FoundRun>& chosen, std::span<const StateDict> dicts);

/// @throws ConfigError unless a tensor of a dict can be (a part of) the array.
void check_tensor(const StateArray& array, const StateTensor& tensor);

}  // namespace mica::fsdp
