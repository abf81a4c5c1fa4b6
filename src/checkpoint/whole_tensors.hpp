// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"
#include "mica/fsdp/root.hpp"

namespace mica::checkpoint {

/// A tensor that is whole on every rank and in no unit: an ignored parameter or a module buffer.
struct WholeTensor {
  std::string name;
  UnitRole role;    ///< ignored or buffer
  Shape shape;      ///< a scalar's is [1]: files have no others
  DType dtype;      ///< as it is saved: of a buffer the original one
  TensorView data;  ///< of shape; its dtype is another one when a unit's buffer_dtype was applied
};

/// Ignored parameters, then buffers (those of ignored modules too), each in module order; none without elements.
/// Shard rank 0 saves them; every rank loads them.
/// @throws Error naming one without data.
[[nodiscard]] std::vector<WholeTensor> whole_tensors(const fsdp::Root& root);

}  // namespace mica::checkpoint
