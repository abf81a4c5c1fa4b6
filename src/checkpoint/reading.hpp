// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/core/error.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::checkpoint {

/// Runs what reads a checkpoint's files, and says what a failed call means.
/// @throws DamagedCheckpointError if a file is missing or too short, ConfigError if this user may not read it, and IoError if the file
/// system failed: the next time it may not.
template <class Action>
decltype(auto) reading(Action action) {
  try {
    return action();
  } catch (const io::FileError& e) {
    if (e.is_missing()) throw DamagedCheckpointError(e.what());
    if (e.is_forbidden()) throw ConfigError(e.what());
    throw;
  }
}

}  // namespace mica::checkpoint
