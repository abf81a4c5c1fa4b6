// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "mica/tensor/kernels.hpp"
#include "mica/tensor/tensor.hpp"

namespace mica::fsdp {

/// Replaces what a parameter sends in its unit's all-gather, and how the whole parameter is made from what is received
/// (docs/parity.md C4; per-parameter sharding on dim 0). Both run on the host and enqueue on the given stream.
/// Example: int8_all_gather() sends 8-bit numbers and one scale per rank.
struct AllGatherHooks {
  struct PreArgs {
    Stream& stream;  ///< pre_unshard
    Pool& pool;
    Kernels& kernels;
    ConstTensorView shard;  ///< [c, ...] f32 master; rows that this rank does not hold are zero
    std::int64_t num_rows;  ///< rows that this rank holds
    DType target;           ///< dtype in which the module wants the parameter
  };
  struct Inputs {
    /// Any dtypes and shapes, the same on every rank (a rank with fewer rows pads) and in every call, made on
    /// PreArgs::stream.
    std::vector<Tensor> tensors;
    std::shared_ptr<const void> metadata;  ///< passed on to post
  };
  struct PostArgs {
    Stream& stream;  ///< unshard
    Pool& pool;
    Kernels& kernels;
    std::vector<ConstTensorView> gathered;  ///< each input of all ranks, [S * numel], rank by rank
    std::shared_ptr<const void> metadata;
    int shard_size;
    TensorView parameter;  ///< [S * c, ...] target dtype, to be written; rows past the parameter's own are padding
  };
  std::function<Inputs(const PreArgs&)> pre;
  std::function<void(const PostArgs&)> post;
};

/// Sends weights as 8-bit integers with one f32 scale per shard (the largest magnitude / 127): a quarter of the bytes of fp32,
/// with an error of at most half a scale per element. A shard with a NaN or an infinity arrives as NaN. CPU tensors only.
[[nodiscard]] AllGatherHooks int8_all_gather();

}  // namespace mica::fsdp
