// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "mica/checkpoint/manifest.hpp"

#include "parameter_source.hpp"

namespace mica::checkpoint {

/// Writes a checkpoint from one process, shard by shard; it appears complete or not at all. Memory: a few blocks in addition to
/// the source's.
/// @param folder  must not exist, nor `folder`.tmp, which is used while writing.
/// @param header  everything except the units' shard_numel, files, index and tokenizer. Each unit's layout and shard_size say how it
///                is cut. A kind of header.state_kinds is written for a unit if the source has it for any of its parameters; for
///                the others it is zero.
/// @param progress  called from time to time with bytes of data written and total; may be empty.
/// @throws IoError, ConfigError (the folder exists or cannot be created; a layout that does not fit); what the source throws.
void write_checkpoint(const std::string& folder, Manifest header, ParameterSource& source, const HfTokenizer& tokenizer,
                      const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace mica::checkpoint
