#pragma once

#include <string_view>

#include "mica/nn/module.hpp"

namespace mica::nn {

/// Writes elements [begin, begin + out.numel()) of the parameter's initial value: the same whatever the pieces.
void fill_initial(Kernels& kernels, Stream& stream, const Parameter& parameter, std::string_view full_name,
                  std::uint64_t seed, std::int64_t begin, TensorView out);

/// Storage of a whole, unsharded module on one rank: data and gradients, initialised. For tests, gradcheck and as the
/// plain single-rank run that every sharded run is compared with.
class PlainParameters {
 public:
  PlainParameters(Module& module, Context& context, DType dtype = DType::f32, DType grad_dtype = DType::f32);
  ~PlainParameters();
  PlainParameters(const PlainParameters&) = delete;
  PlainParameters& operator=(const PlainParameters&) = delete;

  /// The next backward overwrites.
  void zero_grad();

 private:
  Module& module_;
  std::vector<Buffer> buffers_;
};

}  // namespace mica::nn
