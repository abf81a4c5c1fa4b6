// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/core/error.hpp"
#include "mica/io/raw_file.hpp"

namespace mica::checkpoint {

/// Runs what reads a checkpoint's files, and says what a failed call means.
/// @throws DamagedCheckpointError: a file is missing or too short; ConfigError: it may not be read; IoError: the file system failed, and
/// may
///         not the next time
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
