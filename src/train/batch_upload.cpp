#include "mica/train/batch_upload.hpp"

#include <cstring>

namespace mica::train {

void BatchUpload::stage(nn::Context& context, const fsdp::DeviceMesh& device_mesh, data::Batch& batch) {
  const Shape shape{batch.num_sequences, batch.seq_len};
  staged_ = {TensorView(batch.inputs.data(), shape, DType::i32), TensorView(batch.targets.data(), shape, DType::i32)};
  if (device_mesh.device() == DeviceKind::cpu) return;

  const std::int64_t bytes = staged_[0].bytes();
  if (pinned_.bytes() < 2 * bytes) {
    pinned_ = device_mesh.offload().pool->allocate(2 * bytes, MemoryRole::workspace, context.compute);
    context.compute.synchronize();  // the host writes there, which no stream orders behind its last owner
  }
  std::byte* at = static_cast<std::byte*>(pinned_.data());
  for (TensorView& ids : staged_) {
    std::memcpy(at, ids.data, static_cast<std::size_t>(bytes));
    ids.data = at;
    at += bytes;
  }
}

nn::Tensors BatchUpload::upload(nn::Context& context) const {
  nn::Tensors tensors;
  for (const TensorView& ids : staged_) {
    if (!pinned_) {
      tensors.emplace_back(ids);
      continue;
    }
    tensors.push_back(context.make(ids.shape, DType::i32, MemoryRole::activation));
    context.kernels.copy(context.compute, ids, tensors.back());
  }
  return tensors;
}

}  // namespace mica::train
