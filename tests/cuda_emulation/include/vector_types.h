// SPDX-License-Identifier: Apache-2.0
#pragma once

// CUDA's short vectors and dim3, with its alignments. [Note: emulated headers]
// The headers of this folder have the names and the declarations of CUDA 13's own, as far as Mica uses them, so that a
// source that compiles here compiles there. They take the place of the toolkit's where src/*/cuda is built for the CPU.

#define MICA_EMULATED_VECTORS(T, NAME, A2, A4) \
  struct NAME##1 {                             \
    T x;                                       \
  };                                           \
  struct alignas(A2) NAME##2 {                 \
    T x, y;                                    \
  };                                           \
  struct NAME##3 {                             \
    T x, y, z;                                 \
  };                                           \
  struct alignas(A4) NAME##4 {                 \
    T x, y, z, w;                              \
  };

MICA_EMULATED_VECTORS(signed char, char, 2, 4)
MICA_EMULATED_VECTORS(unsigned char, uchar, 2, 4)
MICA_EMULATED_VECTORS(short, short, 4, 8)
MICA_EMULATED_VECTORS(unsigned short, ushort, 4, 8)
MICA_EMULATED_VECTORS(int, int, 8, 16)
MICA_EMULATED_VECTORS(unsigned int, uint, 8, 16)
MICA_EMULATED_VECTORS(long long int, longlong, 16, 16)
MICA_EMULATED_VECTORS(unsigned long long int, ulonglong, 16, 16)
MICA_EMULATED_VECTORS(float, float, 8, 16)
MICA_EMULATED_VECTORS(double, double, 16, 16)
#undef MICA_EMULATED_VECTORS

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
