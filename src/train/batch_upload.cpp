// SPDX-License-Identifier: Apache-2.0
#include "mica/train/batch_upload.hpp"

#include <cstring>

#include "mica/core/rounding.hpp"

namespace mica::train {
namespace {
constexpr std::int64_t kAlignment = 64;  // of each tensor in page-locked memory
}  // namespace

void BatchUpload::stage(nn::Context& context, const fsdp::DeviceMesh& device_mesh, data::Batch& batch) {
  staged_.clear();
  for (data::BatchTensor& tensor : batch.tensors) staged_.push_back(tensor.view());
  if (context.pool.device() == DeviceKind::cpu) return;

  std::int64_t bytes = 0;
  for (const TensorView& tensor : staged_) bytes += round_up(tensor.bytes(), kAlignment);
  if (pinned_.bytes() < bytes) {
    pinned_ = device_mesh.offload().pool->allocate(bytes, MemoryRole::workspace, context.compute);
    context.compute.synchronize();  // the host writes to it, and no stream orders that after the memory's previous use
  }
  std::byte* at = static_cast<std::byte*>(pinned_.data());
  for (TensorView& tensor : staged_) {
    std::memcpy(at, tensor.data, static_cast<std::size_t>(tensor.bytes()));
    tensor.data = at;
    at += round_up(tensor.bytes(), kAlignment);
  }
}

nn::Tensors BatchUpload::upload(nn::Context& context) const {
  nn::Tensors tensors;
  for (const TensorView& staged : staged_) {
    if (!pinned_) {
      tensors.emplace_back(staged);
      continue;
    }
    tensors.push_back(context.make(staged.shape, staged.dtype, MemoryRole::activation));
    context.kernels.copy(context.compute, staged, tensors.back());
  }
  return tensors;
}

}  // namespace mica::train
