// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "mica/fsdp/state_arrays.hpp"

namespace mica::fsdp {

/// Elements [run.begin, run.end) of an array lie at run.offset of what a world rank has of it in one of its dicts.
struct FoundRun {
  std::int64_t array;  ///< in StateArrays::all
  Run run;
  std::int64_t rank;
  std::int64_t dict;
};

/// What this rank's dicts have of the arrays. @throws ConfigError naming a key of another shape or dtype.
[[nodiscard]] std::vector<FoundRun> find_runs(const StateArrays& arrays, std::span<const StateDict> dicts, int rank);

/// Which elements come from where, so that every element of every array comes once: from the dict that reaches furthest, then
/// from the lowest rank. Arrays of which nobody has anything are left out and named in `missing`.
/// @param found  of all ranks.  @throws ConfigError naming array and rows that only some of it is there for.
[[nodiscard]] std::vector<FoundRun> choose_runs(const StateArrays& arrays, std::vector<FoundRun> found, std::vector<std::string>& missing);

/// Brings the chosen runs to all ranks, one broadcast for each unit and source, and stores this rank's part.
/// @collective over the world, with equal arguments but for `dicts`
void exchange(const StateArrays& arrays, const std::vector<FoundRun>& chosen, std::span<const StateDict> dicts);

/// @throws ConfigError unless a tensor of a dict can be (a part of) the array.
void check_tensor(const StateArray& array, const StateTensor& tensor);

}  // namespace mica::fsdp
