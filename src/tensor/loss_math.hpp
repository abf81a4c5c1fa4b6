// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "mica/core/host_device.hpp"
#include "mica/tensor/kernels.hpp"

// The formulas of elementwise losses, for the CPU and for GPUs. In double, which costs little: there are far
// fewer outputs than activations.
namespace mica::element {

MICA_HOST_DEVICE inline double loss(ElementLoss f, double x, double target) {
  if (f == ElementLoss::squared_error) return (x - target) * (x - target);
  // -t log(p) - (1 - t) log(1 - p), where e^-|x| cannot overflow.
  return (x < 0 ? 0 : x) - x * target + std::log1p(std::exp(-std::abs(x)));
}

/// Its derivative with respect to x.
MICA_HOST_DEVICE inline double loss_derivative(ElementLoss f, double x, double target) {
  if (f == ElementLoss::squared_error) return 2 * (x - target);
  const double e = std::exp(-std::abs(x));
  return (x < 0 ? e : 1) / (1 + e) - target;
}

}  // namespace mica::element
