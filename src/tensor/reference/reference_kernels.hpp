// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/tensor/kernels.hpp"

namespace mica::reference {

/// The oracle: every operation as its definition, in double, on copies of its inputs, rounded once into the output.
/// One task per call. The files beside this one are named after the groups of [Note: kernels].
class ReferenceKernels final : public Kernels {
 public:
  [[nodiscard]] std::string description() const override { return "reference (plain loops in double)"; }

#include "../kernel_overrides.inc"
};

}  // namespace mica::reference
