// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a thread knows of its block, and where the threads of a block meet.
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "../vector_types.h"

extern __thread uint3 threadIdx;
extern __thread uint3 blockIdx;
extern __thread dim3 blockDim;
extern __thread dim3 gridDim;
inline constexpr int warpSize = 32;

namespace mica::cuda_emulation {

enum class Shuffle { from_lane, exclusive_or, up, down };

/// All threads of the block meet here. @return the sum of their values
int block_barrier(int value, const std::source_location& where);
/// The lanes of the warp that `mask` names meet here.
/// @return the bits that the lane gets which `shuffle`, `argument` and `width` say
std::uint64_t warp_shuffle(unsigned mask, std::uint64_t bits, Shuffle shuffle, int argument, int width, const std::source_location& where);
/// @return a bit for each lane of `mask` whose `predicate` holds
unsigned warp_vote(unsigned mask, bool predicate, const std::source_location& where);

template <class T>
T shuffle(unsigned mask, T value, Shuffle kind, int argument, int width, const std::source_location& where) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp_shuffle(mask, bits, kind, argument, width, where);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace mica::cuda_emulation

#define MICA_EMULATED_HERE const std::source_location& where = std::source_location::current()

inline void __syncthreads(MICA_EMULATED_HERE) { mica::cuda_emulation::block_barrier(0, where); }
inline int __syncthreads_count(int predicate, MICA_EMULATED_HERE) { return mica::cuda_emulation::block_barrier(predicate != 0, where); }
inline int __syncthreads_or(int predicate, MICA_EMULATED_HERE) { return mica::cuda_emulation::block_barrier(predicate != 0, where) != 0; }
inline int __syncthreads_and(int predicate, MICA_EMULATED_HERE) { return mica::cuda_emulation::block_barrier(predicate == 0, where) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffffU, MICA_EMULATED_HERE) { mica::cuda_emulation::warp_vote(mask, false, where); }
inline unsigned __ballot_sync(unsigned mask, int predicate, MICA_EMULATED_HERE) {
  return mica::cuda_emulation::warp_vote(mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate, MICA_EMULATED_HERE) {
  return mica::cuda_emulation::warp_vote(mask, predicate != 0, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate, MICA_EMULATED_HERE) {
  return mica::cuda_emulation::warp_vote(mask, predicate == 0, where) == 0;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize, MICA_EMULATED_HERE) {
  return mica::cuda_emulation::shuffle(mask, value, mica::cuda_emulation::Shuffle::from_lane, lane, width, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize, MICA_EMULATED_HERE) {
  return mica::cuda_emulation::shuffle(mask, value, mica::cuda_emulation::Shuffle::exclusive_or, lane_mask, width, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, MICA_EMULATED_HERE) {
  return mica::cuda_emulation::shuffle(mask, value, mica::cuda_emulation::Shuffle::up, static_cast<int>(delta), width, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, MICA_EMULATED_HERE) {
  return mica::cuda_emulation::shuffle(mask, value, mica::cuda_emulation::Shuffle::down, static_cast<int>(delta), width, where);
}
#undef MICA_EMULATED_HERE
