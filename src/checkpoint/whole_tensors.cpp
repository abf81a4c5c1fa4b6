// SPDX-License-Identifier: Apache-2.0
#include "whole_tensors.hpp"

namespace mica::checkpoint {
namespace {

void add(std::vector<WholeTensor>& found, const std::string& name, UnitRole role, const Shape& shape, DType dtype, const TensorView& data) {
  if (shape.numel() == 0) return;
  require(static_cast<bool>(data), "the {} {} {} has no data: give it its storage before a checkpoint is saved or loaded",
          role == UnitRole::buffer ? "buffer" : "ignored parameter", name, shape.to_string());
  const Shape stored = shape.num_dims() == 0 ? Shape{1} : shape;
  found.push_back({name, role, stored, dtype, {data.data, stored, data.dtype}});
}

}  // namespace

std::vector<WholeTensor> whole_tensors(const fsdp::Root& root) {
  std::vector<WholeTensor> found;
  for (const fsdp::UnitParameter& p : root.ignored_parameters()) {
    add(found, p.full_name, UnitRole::ignored, p.parameter->shape, p.parameter->data.dtype, p.parameter->data);
  }
  root.units().front()->module().for_each_buffer([&](const std::string& name, nn::ModuleBuffer& buffer) {
    add(found, name, UnitRole::buffer, buffer.shape, buffer.dtype, buffer.data);
  });
  return found;
}

}  // namespace mica::checkpoint
