#include "mica/nn/init.hpp"

namespace mica::nn {

void fill_initial(Kernels& kernels, Stream& stream, const Parameter& parameter, std::string_view full_name,
                  std::uint64_t seed, std::int64_t begin, TensorView out) {
  switch (parameter.init.kind) {
    case Initializer::Kind::zeros:
      kernels.fill(stream, out, 0.0);
      break;
    case Initializer::Kind::ones:
      kernels.fill(stream, out, 1.0);
      break;
    case Initializer::Kind::normal: {
      const RandomKey key{.seed = seed, .step = 0, .sequence = 0, .name_hash = hash_name(full_name)};
      kernels.fill_normal(stream, out, key, begin, parameter.init.std);
      break;
    }
  }
}

PlainParameters::PlainParameters(Module& module, Context& context, DType dtype, DType grad_dtype) : module_(module) {
  module.for_each_parameter([&](const std::string& full_name, Parameter& parameter) {
    const std::int64_t numel = parameter.shape.numel();
    buffers_.push_back(context.pool.allocate(numel * dtype_bytes(dtype), MemoryRole::unsharded_param, context.compute));
    parameter.data = {buffers_.back().data(), parameter.shape, dtype};
    buffers_.push_back(
        context.pool.allocate(numel * dtype_bytes(grad_dtype), MemoryRole::unsharded_grad, context.compute));
    parameter.grad = {buffers_.back().data(), parameter.shape, grad_dtype};
    fill_initial(context.kernels, context.compute, parameter, full_name, context.seed, 0, parameter.data);
  });
  zero_grad();
}

PlainParameters::~PlainParameters() {
  module_.for_each_parameter([](const std::string&, Parameter& parameter) { parameter.data = parameter.grad = {}; });
}

void PlainParameters::zero_grad() {
  module_.for_each_parameter([](const std::string&, Parameter& parameter) { parameter.grad_written = false; });
}

}  // namespace mica::nn
