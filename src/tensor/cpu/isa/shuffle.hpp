// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included by vec.hpp.
namespace mica::cpu::MICA_ISA {
namespace {

/// Lane l becomes lane kFrom[l] of a and b, which are counted one after the other.
template <int... kFrom, class Vector>
MICA_INLINE Vector shuffle(Vector a, Vector b) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, kFrom...);
#else  // gcc 11 does not have it
  return __builtin_shuffle(a, b, decltype(a < b){kFrom...});
#endif
}

}  // namespace
}  // namespace mica::cpu::MICA_ISA
