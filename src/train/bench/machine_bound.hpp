// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: the time that the fastest library on the machine needs for a model's products.

#include <memory>
#include <string>
#include <vector>

#include "mica/mpi/communicator.hpp"
#include "mica/tensor/kernels.hpp"

namespace mica::train::bench {

/// A step's products as the model has them: each layer's forward and two gradients over all of a rank's tokens, once. What Mica cuts
/// into chunks of rows is put together, and what it computes again is left out.
/// @param recorded  of one step with one micro-batch   @param tokens  of a rank
[[nodiscard]] std::vector<ProductShape> model_products(const std::vector<ProductShape>& recorded, std::int64_t tokens);

/// Bytes of operands to take turns with, so that they are as cold as in a step that needs `step_bytes` of memory.
[[nodiscard]] std::int64_t operand_bytes(std::int64_t step_bytes);

/// Times products with oneDNN and every BLAS library found, whole and in chunks of rows, on all ranks at once. Each call gets operands
/// that were not used for long, out of `operand_bytes`. @collective: the same calls on all ranks.
class FastestLibrary {
 public:
  FastestLibrary(const mpi::Communicator& world, int num_threads, std::int64_t operand_bytes);
  ~FastestLibrary();
  FastestLibrary(const FastestLibrary&) = delete;
  FastestLibrary& operator=(const FastestLibrary&) = delete;

  /// For a product, on the slowest rank, with the library and the chunks that are fastest. bf16 where no library has it: in f32, as
  /// Mica's kernels then compute.
  [[nodiscard]] double least_seconds(const ProductShape& shape);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct MachineBound {
  double seconds = 0, flops = 0;  ///< of a rank's step
};
/// The least time of a step: its products at their best rates, and attention's FLOPs at the rate of all of them together.
/// @param attention_flops  of a rank's step. @collective
[[nodiscard]] MachineBound machine_bound(FastestLibrary& libraries, const std::vector<ProductShape>& products, double attention_flops);

}  // namespace mica::train::bench
