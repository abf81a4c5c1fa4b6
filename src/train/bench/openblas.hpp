// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: OpenBLAS as a baseline, if the machine has it.

#include <memory>
#include <optional>

#include "mica/tensor/kernels.hpp"

namespace mica::train::bench {

/// libopenblas.so.0, opened at run time: Mica itself neither needs nor links it.
class OpenBlas {
 public:
  /// @returns nothing if the library is not installed.
  static std::optional<OpenBlas> open(int num_threads);
  /// OpenBLAS has bf16 products only if it was built with them; their C is f32.
  [[nodiscard]] bool supports(DType dtype) const;
  /// C = A B, row-major without gaps.
  void run(const ProductShape& shape, const void* a, const void* b, void* c) const;

 private:
  struct Close {
    void operator()(void* library) const;
  };
  std::unique_ptr<void, Close> library_;
  void* sgemm_ = nullptr;
  void* sbgemm_ = nullptr;
};

}  // namespace mica::train::bench
