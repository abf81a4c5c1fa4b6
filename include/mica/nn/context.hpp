// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "mica/device/pool.hpp"
#include "mica/nn/record.hpp"
#include "mica/tensor/kernels.hpp"
#include "mica/tensor/tensor.hpp"

namespace mica::nn {

/// Which outputs a forward with a Record drops and recomputes in backward. [Note: recomputed outputs]
enum class Recompute : std::uint8_t {
  none,   ///< none: whatever backward reads is kept
  cheap,  ///< those of norms and of activation functions (GELU, SwiGLU)
};

class KeyValueCache;

/// The environment of a forward or backward. One per rank; the trainer sets step and sequences before each micro-batch.
struct Context {
  Stream& compute;
  Pool& pool;
  Kernels& kernels;

  std::uint64_t seed = 0;
  std::uint64_t step = 0;               ///< counts from 1
  std::vector<std::int64_t> sequences;  ///< global sequence id of each row of the batch
  bool training = true;                 ///< dropout on
  Recompute recompute = Recompute::none;
  /// The caller promises one backward for every forward with a Record: the head then computes the loss together with
  /// its gradient in that backward (one product for the logits instead of two). The loss tensor is filled there.
  bool loss_in_backward = false;
  /// Inside a checkpointed region's first forward: no Record, but a backward will come.
  bool inside_checkpoint = false;
  /// A checkpointed region is being run a second time, inside a backward.
  bool recomputing = false;
  /// Set while sequences are continued ([Note: cached forward] in key_value_cache.hpp).
  KeyValueCache* cache = nullptr;

  [[nodiscard]] Tensor make(Shape shape, DType dtype, MemoryRole role = MemoryRole::activation) const {
    return {pool.allocate(shape.numel() * dtype_bytes(dtype), role, compute), shape, dtype};
  }
};

/// Sets a member of a Context until the end of the scope.
template <class T>
class ScopedValue {
 public:
  ScopedValue(T& member, T value) : member_(member), outer_(std::exchange(member, std::move(value))) {}
  ~ScopedValue() { member_ = std::move(outer_); }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& member_;
  T outer_;
};

/// The RandomPoint that the context draws from now.
[[nodiscard]] inline RandomPoint random_point(const Context& context) {
  return {context.seed, context.step, context.sequences, context.training};
}

}  // namespace mica::nn
