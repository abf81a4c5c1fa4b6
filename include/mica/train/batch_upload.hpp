#pragma once

#include "mica/data/batch.hpp"
#include "mica/fsdp/device_mesh.hpp"
#include "mica/nn/module.hpp"

namespace mica::train {

/// Brings token ids to where the model reads them. On a CPU they stay where they are; for a GPU they go by page-locked
/// memory, so that the host need not wait.
class BatchUpload {
 public:
  /// inputs and targets, [B,T] i32 each. `batch` and this object stay until the stream has done what uses the result,
  /// before the next call too.
  [[nodiscard]] nn::Tensors operator()(nn::Context& context, const fsdp::DeviceMesh& device_mesh, data::Batch& batch);

 private:
  Buffer pinned_;
};

}  // namespace mica::train
