// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda_kernels.hpp"

namespace mica::cuda {

/// Bytes of scratch for sort_ids(): two orders and the counts.
[[nodiscard]] std::int64_t sort_ids_scratch_bytes(std::int64_t count);

/// The numbers 0 .. count-1 in the order of their ids, those of one id together and ascending; ids outside [0, vocab)
/// come last. A radix sort of 8 bits at a time without atomic operations: the same order in every run.
/// @param ids  [count] in device memory, count < 2^31.  @param space  sort_ids_scratch_bytes(count)
/// @return [count], in `space`
[[nodiscard]] const std::int32_t* sort_ids(Stream& s, ConstTensorView ids, std::int64_t vocab, const Buffer& space);

}  // namespace mica::cuda
