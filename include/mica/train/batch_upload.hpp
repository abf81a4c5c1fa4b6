#pragma once

#include <array>

#include "mica/data/batch.hpp"
#include "mica/fsdp/device_mesh.hpp"
#include "mica/nn/module.hpp"

namespace mica::train {

/// Moves token ids to the model's device. On a CPU they stay in place; for a GPU they are copied through page-locked memory, so
/// that the host need not wait.
class BatchUpload {
 public:
  /// Takes a batch, which, like this object, must stay until the stream has finished using upload()'s result, also before the
  /// next call. Enqueues nothing (the first call on a GPU allocates memory and waits for the stream).
  void stage(nn::Context& context, const fsdp::DeviceMesh& device_mesh, data::Batch& batch);
  /// The staged inputs and targets, [B,T] i32 each.
  [[nodiscard]] nn::Tensors upload(nn::Context& context) const;

 private:
  std::array<TensorView, 2> staged_;  // inputs, targets
  Buffer pinned_;                     // staging memory for a GPU
};

}  // namespace mica::train
