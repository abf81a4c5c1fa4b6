// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"
#include "mica/io/hdf5.hpp"
#include "mica/tensor/shape.hpp"

#include "shard_file.hpp"

namespace mica::checkpoint {

/// Elements [begin, end) of a row-major N-D array as boxes that do not overlap, in order: at most 2*N - 1 of them.
[[nodiscard]] std::vector<io::Hdf5Box> boxes_of_range(const Shape& shape, std::int64_t begin, std::int64_t end);

/// Writes and fsyncs model.h5, the whole model for any program that reads HDF5: [Note: model.h5]
///   /<full name>               every parameter, N-D, f32: "/transformer.h.0.attn.c_attn.weight"; ignored
///                              parameters and module buffers in their own dtype
///   /optim/<kind>/<full name>  its optimizer state, if any: "/optim/exp_avg/..."
/// They are virtual datasets over the shard files beside it: nothing is stored twice, and the folder may be moved. Elements of a
/// missing shard file read as NaN. Mica itself does not read model.h5.
/// It depends on names and layouts only, so it can be written before the shard files, or while they are.
/// @param first  shard rank 0's, which has the datasets of all units. @throws IoError.
[[nodiscard]] FileEntry write_model_index(const std::string& folder, const ShardContents& first);

}  // namespace mica::checkpoint
