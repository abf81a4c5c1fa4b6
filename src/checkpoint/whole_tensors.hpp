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
  Shape shape;      ///< [1] for a scalar: files have no 0-dim tensors
  DType dtype;      ///< in the checkpoint; a buffer's original dtype
  TensorView data;  ///< has this shape; its dtype differs if a unit's buffer_dtype was applied
};

/// Ignored parameters, then buffers (also of ignored modules), each in module order. Empty tensors are left out.
/// Shard rank 0 saves them; every rank loads them.
/// @throws Error naming one without data.
[[nodiscard]] std::vector<WholeTensor> whole_tensors(const fsdp::Root& root);

}  // namespace mica::checkpoint
