// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "mica/core/half.hpp"
#include "mica/tensor/host_math.hpp"

#include "../../../src/tensor/cpu/loops.hpp"

/// What the tests of the CPU's loops share: typed arrays seen as doubles, splits of a range, units in the last place.
namespace mica::testing {

/// Elements of f32, bf16, f16, moment8 or square8.
class Array {
 public:
  /// Filled with NaN, so that whatever is not written shows.
  Array(DType dtype, std::int64_t n) : dtype_(dtype), n_(n), bytes_(static_cast<std::size_t>(n * dtype_bytes(dtype)), 0xff) {}
  Array(DType dtype, const std::vector<double>& values) : Array(dtype, static_cast<std::int64_t>(values.size())) {
    for (std::size_t i = 0; i < values.size(); ++i) set(static_cast<std::int64_t>(i), values[i]);
  }

  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] std::int64_t numel() const { return n_; }
  [[nodiscard]] void* data() { return bytes_.data(); }
  [[nodiscard]] const void* data() const { return bytes_.data(); }
  [[nodiscard]] float* floats() { return reinterpret_cast<float*>(bytes_.data()); }
  [[nodiscard]] const float* floats() const { return reinterpret_cast<const float*>(bytes_.data()); }

  [[nodiscard]] double operator[](std::int64_t i) const {
    const unsigned char* p = bytes_.data() + i * dtype_bytes(dtype_);
    if (dtype_ == DType::f32) return static_cast<double>(read<float>(p));
    if (dtype_ == DType::bf16) return static_cast<double>(static_cast<float>(read<bf16>(p)));
    if (dtype_ == DType::moment8 || dtype_ == DType::square8) {
      float value = 0;
      convert(p, dtype_, &value, DType::f32, 1);
      return static_cast<double>(value);
    }
    return static_cast<double>(static_cast<float>(read<f16>(p)));
  }
  void set(std::int64_t i, double value) {
    unsigned char* p = bytes_.data() + i * dtype_bytes(dtype_);
    const auto f = static_cast<float>(value);
    if (dtype_ == DType::f32) write(p, f);
    if (dtype_ == DType::bf16) write(p, bf16(f));
    if (dtype_ == DType::f16) write(p, f16(f));
    if (dtype_ == DType::moment8 || dtype_ == DType::square8) convert(&f, DType::f32, p, dtype_, 1);
  }
  [[nodiscard]] bool same_bits(const Array& other, std::int64_t begin, std::int64_t end) const {
    const std::int64_t b = dtype_bytes(dtype_);
    return begin >= end ||
           std::memcmp(bytes_.data() + begin * b, other.bytes_.data() + begin * b, static_cast<std::size_t>((end - begin) * b)) == 0;
  }
  friend bool operator==(const Array& a, const Array& b) { return a.dtype_ == b.dtype_ && a.bytes_ == b.bytes_; }

 private:
  template <class T>
  static T read(const unsigned char* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  template <class T>
  static void write(unsigned char* p, T v) {
    std::memcpy(p, &v, sizeof v);
  }
  DType dtype_;
  std::int64_t n_;
  std::vector<unsigned char> bytes_;
};

/// n normal numbers times `deviation`.
inline std::vector<double> normals(std::int64_t n, unsigned seed, double deviation = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> distribution(0, deviation);
  std::vector<double> v(static_cast<std::size_t>(n));
  for (double& e : v) e = distribution(engine);
  return v;
}
inline Array normal_array(DType dtype, std::int64_t n, unsigned seed, double deviation = 1) { return {dtype, normals(n, seed, deviation)}; }

/// The tables that this processor can run.
inline std::vector<const cpu::Loops*> all_loops() {
  std::vector<const cpu::Loops*> tables;
  for (const cpu::Isa isa : {cpu::Isa::v2, cpu::Isa::v3, cpu::Isa::v4}) {
    if (const cpu::Loops* table = cpu::loops_of(isa)) tables.push_back(table);
  }
  return tables;
}
inline const char* name_of(const cpu::Loops& table) { return cpu::isa_name(table.isa).data(); }

/// run(out, begin, end) writes out[begin, end). Checks that every sub-range of [0, start.numel()) gives the bits of the
/// whole range and leaves its neighbours alone. `start` is what the output holds before.
inline void expect_same_bits_for_any_split(const Array& start, const std::function<void(Array&, std::int64_t, std::int64_t)>& run) {
  const std::int64_t n = start.numel();
  Array whole = start;
  run(whole, 0, n);
  for (std::int64_t begin = 0; begin <= n; ++begin) {
    for (std::int64_t end = begin; end <= n; ++end) {
      Array part = start;
      run(part, begin, end);
      ASSERT_TRUE(part.same_bits(start, 0, begin)) << "wrote before [" << begin << ", " << end << ")";
      ASSERT_TRUE(part.same_bits(whole, begin, end)) << "other bits in [" << begin << ", " << end << ")";
      ASSERT_TRUE(part.same_bits(start, end, n)) << "wrote behind [" << begin << ", " << end << ")";
    }
  }
}

/// Rounding of a result that is too small for a dtype's full precision.
inline double subnormal_rounding(DType dtype) { return dtype == DType::f16 ? 0x1p-25 : 0; }

/// |seen - exact| in units of the last place of a dtype (24, 8 or 11 significant bits) at `exact`.
inline double ulps(double seen, double exact, DType dtype = DType::f32) {
  if (std::isnan(exact) || std::isnan(seen)) return std::isnan(exact) == std::isnan(seen) ? 0 : INFINITY;
  if (std::isinf(exact) || std::isinf(seen)) return exact == seen ? 0 : INFINITY;
  const int digits = dtype == DType::f32 ? 24 : dtype == DType::bf16 ? 8 : 11;
  const int lowest = dtype == DType::f16 ? -14 : -126;
  const int exponent = exact == 0 ? lowest : std::max(std::ilogb(exact), lowest);
  return std::abs(seen - exact) / std::ldexp(1, exponent - digits + 1);
}

/// Longer than four of the widest vectors, with a rest.
inline constexpr std::int64_t kSplitNumel = 75;

}  // namespace mica::testing
