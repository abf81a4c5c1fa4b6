// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: BLAS libraries as baselines, where the machine has them.

#include <memory>
#include <string>
#include <vector>

#include "mica/tensor/kernels.hpp"

namespace mica::train::bench {

/// A BLAS library opened at run time: Mica itself neither needs nor links it.
class BlasLibrary {
 public:
  /// Those of OpenBLAS, BLIS and MKL that are installed.
  [[nodiscard]] static std::vector<BlasLibrary> find(int num_threads);

  [[nodiscard]] const std::string& name() const { return name_; }
  /// bf16: OpenBLAS and MKL if built with it.
  [[nodiscard]] bool supports(DType dtype) const;
  /// C = A B, row-major without gaps; C is f32.
  void run(const ProductShape& shape, const void* a, const void* b, void* c) const;

 private:
  struct Close {
    void operator()(void* library) const;
  };
  std::string name_;
  std::unique_ptr<void, Close> library_;
  void* f32_product_ = nullptr;
  void* bf16_product_ = nullptr;
};

}  // namespace mica::train::bench
