#pragma once

#include <array>

#include "mica/data/batch.hpp"
#include "mica/fsdp/device_mesh.hpp"
#include "mica/nn/module.hpp"

namespace mica::train {

/// Brings token ids to where the model reads them. On a CPU they stay where they are; for a GPU they go by page-locked
/// memory, so that the host need not wait.
class BatchUpload {
 public:
  /// Takes over a batch; it and this object stay until the stream has done what uses upload()'s result, before the next
  /// call too. Enqueues nothing (the first call on a GPU waits for the stream: it takes memory).
  void stage(nn::Context& context, const fsdp::DeviceMesh& device_mesh, data::Batch& batch);
  /// What was staged: inputs and targets, [B,T] i32 each.
  [[nodiscard]] nn::Tensors upload(nn::Context& context) const;

 private:
  std::array<TensorView, 2> staged_;  // inputs, targets
  Buffer pinned_;                     // where they are for a GPU
};

}  // namespace mica::train
