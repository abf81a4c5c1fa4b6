// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "vector_types.h"

#define MICA_EMULATED_MAKE(T, NAME)                                  \
  inline NAME##1 make_##NAME##1(T x) { return {x}; }                 \
  inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }         \
  inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; } \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

MICA_EMULATED_MAKE(signed char, char)
MICA_EMULATED_MAKE(unsigned char, uchar)
MICA_EMULATED_MAKE(short, short)
MICA_EMULATED_MAKE(unsigned short, ushort)
MICA_EMULATED_MAKE(int, int)
MICA_EMULATED_MAKE(unsigned int, uint)
MICA_EMULATED_MAKE(long long int, longlong)
MICA_EMULATED_MAKE(unsigned long long int, ulonglong)
MICA_EMULATED_MAKE(float, float)
MICA_EMULATED_MAKE(double, double)
#undef MICA_EMULATED_MAKE
