// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/init.hpp"

namespace mica::nn {

void fill_initial(Kernels& kernels, Stream& stream, const Initializer& init, std::string_view full_name, std::uint64_t seed,
                  std::int64_t begin, TensorView out) {
  switch (init.kind) {
    case Initializer::Kind::zeros:
      kernels.fill(stream, out, 0.0);
      break;
    case Initializer::Kind::ones:
      kernels.fill(stream, out, 1.0);
      break;
    case Initializer::Kind::normal: {
      const RandomKey key{.seed = seed, .step = 0, .sequence = 0, .name_hash = hash_name(full_name)};
      kernels.fill_normal(stream, out, key, begin, init.std);
      break;
    }
  }
}

PlainParameters::PlainParameters(Module& module, Context& context, DType dtype, DType grad_dtype) : module_(module) {
  const auto give = [&](TensorView& tensor, const Shape& shape, DType type, MemoryRole role) {
    Buffer storage = context.pool.allocate(shape.numel() * dtype_bytes(type), role, context.compute);
    tensor = {storage.data(), shape, type};
    held_.push_back({&tensor, std::move(storage)});
  };
  module.for_each_parameter([&](const std::string& full_name, Parameter& parameter) {
    give(parameter.data, parameter.shape, dtype, MemoryRole::unsharded_param);
    give(parameter.grad, parameter.shape, grad_dtype, MemoryRole::unsharded_grad);
    fill_initial(context.kernels, context.compute, parameter, full_name, context.seed, 0, parameter.data);
  });
  module.for_each_buffer([&](const std::string& full_name, ModuleBuffer& buffer) {
    give(buffer.data, buffer.shape, buffer.dtype, MemoryRole::module_buffer);
    fill_initial(context.kernels, context.compute, buffer.init, full_name, context.seed, 0, buffer.data);
  });
  zero_grad();
}

PlainParameters::~PlainParameters() {
  for (const Held& held : held_) {
    if (held.tensor->data == held.storage.data()) *held.tensor = {};
  }
}

void PlainParameters::zero_grad() {
  module_.for_each_parameter([](const std::string&, Parameter& parameter) { parameter.grad_written = false; });
}

}  // namespace mica::nn
