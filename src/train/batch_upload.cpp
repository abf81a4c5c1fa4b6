#include "mica/train/batch_upload.hpp"

#include <cstring>

namespace mica::train {

nn::Tensors BatchUpload::operator()(nn::Context& context, const fsdp::DeviceMesh& device_mesh, data::Batch& batch) {
  const Shape shape{batch.num_sequences, batch.seq_len};
  const TensorView inputs{batch.inputs.data(), shape, DType::i32}, targets{batch.targets.data(), shape, DType::i32};
  if (device_mesh.device() == DeviceKind::cpu) return {Tensor(inputs), Tensor(targets)};

  const std::int64_t bytes = inputs.bytes();
  if (pinned_.bytes() < 2 * bytes) {
    pinned_ = device_mesh.offload_pool().allocate(2 * bytes, MemoryRole::workspace, context.compute);
    context.compute.synchronize();  // the host writes there, which no stream orders behind its last owner
  }
  nn::Tensors tensors;
  std::byte* at = static_cast<std::byte*>(pinned_.data());
  for (const TensorView& host : {inputs, targets}) {
    std::memcpy(at, host.data, static_cast<std::size_t>(bytes));
    tensors.push_back(context.make(shape, DType::i32, MemoryRole::activation));
    context.kernels.copy(context.compute, TensorView{at, shape, DType::i32}, tensors.back());
    at += bytes;
  }
  return tensors;
}

}  // namespace mica::train
