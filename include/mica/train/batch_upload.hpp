// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "mica/data/batch.hpp"
#include "mica/fsdp/device_mesh.hpp"
#include "mica/nn/module.hpp"

namespace mica::train {

/// Brings a micro-batch to where the model reads it. On a CPU it stays where it is; for a GPU it is staged in page-locked memory, so that
/// the host need not wait.
class BatchUpload {
 public:
  /// Takes a batch. The batch and this object must stay alive, and stage() must not be called again, until the stream has finished using
  /// upload()'s result. Enqueues nothing (the first call on a GPU allocates memory and waits for the stream).
  void stage(nn::Context& context, const fsdp::DeviceMesh& device_mesh, data::Batch& batch);
  /// The staged batch's tensors.
  [[nodiscard]] nn::Tensors upload(nn::Context& context) const;

 private:
  std::vector<TensorView> staged_;
  Buffer pinned_;  // holds them for a GPU
};

}  // namespace mica::train
