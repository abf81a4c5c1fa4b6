// SPDX-License-Identifier: Apache-2.0
#pragma once

// CUDA's device functions that are neither communication nor plain <cmath>. Approximate ones (__expf ...) are exact
// here.
#include <algorithm>
#include <atomic>
#include <bit>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

// ---- bits
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __ffsll(long long x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(x)) + 1; }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<std::uint64_t>(a) * b) >> 32); }
inline int __mulhi(int a, int b) { return static_cast<int>((static_cast<std::int64_t>(a) * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>((static_cast<Wide>(a) * b) >> 64);
}

// ---- arithmetic with a named rounding: the compiler may not contract these. The emulation is built with
// -ffp-contract=off, so that plain operators are not contracted either.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0F / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __exp2f(float x) { return std::exp2(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanhf(float x) { return std::tanh(x); }
inline float __saturatef(float x) { return x > 0.0F ? std::min(x, 1.0F) : 0.0F; }
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }

// ---- conversions
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
inline double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline unsigned __float2uint_rz(float x) { return static_cast<unsigned>(x); }
inline long long __float2ll_rn(float x) { return std::llrint(x); }
inline long long __double2ll_rn(double x) { return std::llrint(x); }

// ---- CUDA's global overloads
#define MICA_EMULATED_MIN_MAX(T)                   \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T max(T a, T b) { return a < b ? b : a; }
MICA_EMULATED_MIN_MAX(int)
MICA_EMULATED_MIN_MAX(unsigned)
MICA_EMULATED_MIN_MAX(long)
MICA_EMULATED_MIN_MAX(unsigned long)
MICA_EMULATED_MIN_MAX(long long)
MICA_EMULATED_MIN_MAX(unsigned long long)
#undef MICA_EMULATED_MIN_MAX
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
using std::isfinite;
using std::isinf;
using std::isnan;

// ---- memory
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldca(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, std::type_identity_t<T> value) {
  *p = value;
}
template <class T>
void __stcg(T* p, std::type_identity_t<T> value) {
  *p = value;
}
template <class T>
void __stwb(T* p, std::type_identity_t<T> value) {
  *p = value;
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() {}
inline void __threadfence_system() { __threadfence(); }
inline void __trap() { std::abort(); }

// ---- atomics. Ranks that are threads of one process may run kernels at the same time.
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*p).fetch_add(value);
}
template <class T>
T atomicSub(T* p, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*p).fetch_sub(value);
}
template <class T>
T atomicAnd(T* p, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*p).fetch_and(value);
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*p).fetch_or(value);
}
template <class T>
T atomicXor(T* p, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*p).fetch_xor(value);
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*p).exchange(value);
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref<T>(*p).compare_exchange_strong(expected, value);
  return expected;
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> value) {
  std::atomic_ref<T> it(*p);
  T seen = it.load();
  while (seen < value && !it.compare_exchange_weak(seen, value)) {
  }
  return seen;
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> value) {
  std::atomic_ref<T> it(*p);
  T seen = it.load();
  while (value < seen && !it.compare_exchange_weak(seen, value)) {
  }
  return seen;
}
