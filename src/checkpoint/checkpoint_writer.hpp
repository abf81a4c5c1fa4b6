// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "mica/checkpoint/manifest.hpp"

#include "parameter_source.hpp"

namespace mica::checkpoint {

/// Writes a checkpoint from one process, shard by shard: complete under its name, or not at all. Memory: a few blocks
/// beside what the source needs.
/// @param folder  must not exist, nor `folder`.tmp, which is written.
/// @param header  all but shard_numel of units, files, index and tokenizer. Each unit's layout and shard_size say how it is cut; a
///                kind of header.state_kinds is written for the units in which the source has it for some parameter, the
///                others' being zero.
/// @param progress  called now and then with the bytes of data written and in all; may be empty.
/// @throws IoError, ConfigError (the folder is there, or cannot be made; a layout that does not fit); what the source
/// throws.
void write_checkpoint(const std::string& folder, Manifest header, ParameterSource& source, const HfTokenizer& tokenizer,
                      const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace mica::checkpoint
