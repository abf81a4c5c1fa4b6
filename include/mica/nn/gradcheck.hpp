// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "mica/nn/module.hpp"

namespace mica::nn {

struct GradcheckOptions {
  double step = 0.01;              ///< of the differences, in units of the elements
  std::int64_t max_elements = 64;  ///< checked per tensor, spread evenly over it
  double parameter_noise = 0.2;    ///< standard deviation of noise added to the initial values (zeros hide mistakes)
  std::uint64_t seed = 1;
};

/// The element with the largest difference between backward and finite difference.
struct GradcheckReport {
  /// |backward - difference| over the largest difference in the same tensor (at least 1 % of the largest of all).
  double worst_error = 0;
  std::string worst_element;  ///< "mlp.c_fc.weight[17]: backward 0.1234, finite difference 0.1250"
  std::int64_t num_checked = 0;
};

/// Compares a module's backward with finite differences of its forward: of sum(r * y) over all outputs with fixed random r, for
/// every trainable parameter and every input with needs_grad. f32; uses the four-point formula, whose error is of the order
/// step^4, so that the step can be large compared with f32 rounding: a correct backward stays below about 1e-3.
/// @code
///   const auto report = nn::gradcheck(my_module, context, {x});
///   ASSERT_LT(report.worst_error, 2e-3) << report.worst_element;
/// @endcode
/// The module must not be sharded: its parameters get storage here, filled with their initial values plus noise. Inputs are
/// changed temporarily.
/// @throws ConfigError if the context's device is not the CPU.
[[nodiscard]] GradcheckReport gradcheck(Module& module, Context& context, const Tensors& xs, const GradcheckOptions& options = {});

}  // namespace mica::nn
