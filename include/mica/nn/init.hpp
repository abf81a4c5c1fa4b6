// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "mica/nn/module.hpp"

namespace mica::nn {

/// Writes elements [begin, begin + out.numel()) of an initial value; they do not depend on how it is cut into pieces.
void fill_initial(Kernels& kernels, Stream& stream, const Initializer& init, std::string_view full_name, std::uint64_t seed,
                  std::int64_t begin, TensorView out);
/// The same for a parameter.
inline void fill_initial(Kernels& kernels, Stream& stream, const Parameter& parameter, std::string_view full_name, std::uint64_t seed,
                         std::int64_t begin, TensorView out) {
  fill_initial(kernels, stream, parameter.init, full_name, seed, begin, out);
}

/// Storage of a whole, unsharded module on one rank: data, gradients and buffers, initialised. For tests, gradcheck, and the
/// plain single-rank run that sharded runs are compared with.
class PlainParameters {
 public:
  PlainParameters(Module& module, Context& context, DType dtype = DType::f32, DType grad_dtype = DType::f32);
  ~PlainParameters();
  PlainParameters(const PlainParameters&) = delete;
  PlainParameters& operator=(const PlainParameters&) = delete;

  /// The next backward overwrites.
  void zero_grad();

 private:
  struct Held {
    TensorView* tensor;  // of the module; it refers to the storage until somebody replaces it (a sharded model does)
    Buffer storage;
  };
  Module& module_;
  std::vector<Held> held_;
};

}  // namespace mica::nn
