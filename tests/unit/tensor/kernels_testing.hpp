// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>

#include "mica/tensor/host_math.hpp"
#include "mica/tensor/kernels.hpp"

#include "support/tested_kernels.hpp"

// What the tests of a device's kernels against the oracle share.
namespace mica::testing {

using device::kManyThreads;
using device::Lane;

/// Bytes that the host and the tested kernels share.
class SharedBytes {
 public:
  SharedBytes(std::size_t size, std::byte value) : size_(size), data_(device::allocate_shared(std::max<std::size_t>(size, 1))) {
    std::fill_n(data_, size, value);
  }
  SharedBytes(const SharedBytes& other) : size_(other.size_), data_(device::allocate_shared(std::max<std::size_t>(other.size_, 1))) {
    std::copy_n(other.data_, size_, data_);
  }
  SharedBytes& operator=(SharedBytes other) noexcept {
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~SharedBytes() { device::free_shared(data_, std::max<std::size_t>(size_, 1)); }
  [[nodiscard]] std::byte* data() { return data_; }
  [[nodiscard]] const std::byte* data() const { return data_; }
  friend bool operator==(const SharedBytes& a, const SharedBytes& b) {
    return a.size_ == b.size_ && std::memcmp(a.data_, b.data_, a.size_) == 0;
  }

 private:
  std::size_t size_;
  std::byte* data_;
};

/// Memory of one tensor. Fresh ones hold NaN (integers: garbage), so that an element that a kernel forgets to
/// write is seen.
class HostTensor {
 public:
  HostTensor(Shape shape, DType dtype)
      : shape_(shape),
        dtype_(dtype),
        bytes_(static_cast<std::size_t>(shape.numel() * dtype_bytes(dtype)) + device::num_guard_bytes(), std::byte{0xff}) {}
  /// Uniform in [low, high), rounded to the dtype.
  static HostTensor random(Shape shape, DType dtype, unsigned seed, double low = -1, double high = 1) {
    HostTensor t(shape, dtype);
    std::mt19937 engine(seed * 7919U + 13U);
    std::uniform_real_distribution<double> draw(low, high);
    for (std::int64_t i = 0; i < t.numel(); ++i) t.set(i, draw(engine));
    return t;
  }
  static HostTensor random_ids(Shape shape, std::int64_t vocab, unsigned seed) {
    HostTensor t(shape, DType::i32);
    std::mt19937 engine(seed * 104729U + 7U);
    std::uniform_int_distribution<std::int64_t> draw(0, vocab - 1);
    for (std::int64_t i = 0; i < t.numel(); ++i) t.set(i, static_cast<double>(draw(engine)));
    return t;
  }
  static HostTensor of(DType dtype, const std::vector<double>& values) {
    HostTensor t({static_cast<std::int64_t>(values.size())}, dtype);
    for (std::size_t i = 0; i < values.size(); ++i) t.set(static_cast<std::int64_t>(i), values[i]);
    return t;
  }

  [[nodiscard]] TensorView view() { return {bytes_.data(), shape_, dtype_}; }
  [[nodiscard]] std::int64_t numel() const { return shape_.numel(); }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  operator TensorView() { return view(); }       // NOLINT(google-explicit-constructor)
  operator ConstTensorView() { return view(); }  // NOLINT(google-explicit-constructor)

  [[nodiscard]] double at(std::int64_t i) const {
    switch (dtype_) {
      case DType::f32:
        return static_cast<double>(element<float>(i));
      case DType::f64:
        return element<double>(i);
      case DType::bf16:
        return static_cast<double>(static_cast<float>(element<bf16>(i)));
      case DType::f16:
        return static_cast<double>(static_cast<float>(element<f16>(i)));
      case DType::i32:
        return element<std::int32_t>(i);
      case DType::i64:
        return static_cast<double>(element<std::int64_t>(i));
      case DType::u16:
        return element<std::uint16_t>(i);
      case DType::u8:
        return element<std::uint8_t>(i);
      case DType::moment8:
      case DType::square8: {
        float value = 0;
        convert(bytes_.data() + i, dtype_, &value, DType::f32, 1);
        return static_cast<double>(value);
      }
    }
    return 0;
  }
  void set(std::int64_t i, double value) {
    switch (dtype_) {
      case DType::f32:
        return put(i, static_cast<float>(value));
      case DType::f64:
        return put(i, value);
      case DType::bf16:
        return put(i, bf16(static_cast<float>(value)));
      case DType::f16:
        return put(i, f16(static_cast<float>(value)));
      case DType::i32:
        return put(i, static_cast<std::int32_t>(value));
      case DType::i64:
        return put(i, static_cast<std::int64_t>(value));
      case DType::u16:
        return put(i, static_cast<std::uint16_t>(value));
      case DType::u8:
        return put(i, static_cast<std::uint8_t>(value));
      case DType::moment8:
      case DType::square8: {
        const auto f = static_cast<float>(value);
        return convert(&f, DType::f32, bytes_.data() + i, dtype_, 1);
      }
    }
  }
  [[nodiscard]] bool same_bits(const HostTensor& other) const { return bytes_ == other.bytes_; }

 private:
  template <class T>
  [[nodiscard]] T element(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
  template <class T>
  void put(std::int64_t i, T value) {
    std::memcpy(bytes_.data() + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
  }

  Shape shape_;
  DType dtype_;
  SharedBytes bytes_;  // with those behind it that must stay 0xff
};

/// Rounding of one result into a dtype, relative: one unit, since exact results close to a tie round to either side.
inline double rounding(DType dtype) { return dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f16 ? 0x1p-10 : 0x1p-23; }
/// An f32 sum of `depth` products of numbers up to a and b: each of the additions may err by half a unit of the
/// largest partial sum, which is at most depth * a * b.
inline double sum_error(std::int64_t depth, double a = 1, double b = 1) {
  const auto n = static_cast<double>(depth);
  return n * 0x1p-24 * n * a * b;
}

inline double largest(const HostTensor& numbers) {
  double result = 0;
  for (std::int64_t i = 0; i < numbers.numel(); ++i) result = std::max(result, std::abs(numbers.at(i)));
  return result;
}

/// |got - want| <= absolute + rounding(dtype) * |want| for every element; NaN never passes.
inline ::testing::AssertionResult near(const HostTensor& got, const HostTensor& want, double absolute) {
  if (got.numel() != want.numel()) return ::testing::AssertionFailure() << "numels differ";
  for (std::int64_t i = 0; i < got.numel(); ++i) {
    const double allowed = absolute + rounding(got.dtype()) * std::abs(want.at(i));
    if (std::abs(got.at(i) - want.at(i)) <= allowed) continue;
    return ::testing::AssertionFailure() << "element " << i << " of " << got.shape().to_string() << " " << dtype_name(got.dtype()) << " is "
                                         << got.at(i) << ", expected " << want.at(i) << " within " << allowed;
  }
  return ::testing::AssertionSuccess();
}

/// The same of the whole: the distance of the two, relative to the length of `want`. Sharper than near() where every element may err by
/// the rounding of large terms that cancel.
inline ::testing::AssertionResult near_as_a_whole(const HostTensor& got, const HostTensor& want, double relative) {
  double apart = 0, length = 0;
  for (std::int64_t i = 0; i < want.numel(); ++i) {
    apart += std::pow(got.at(i) - want.at(i), 2);
    length += std::pow(want.at(i), 2);
  }
  if (std::sqrt(apart) <= relative * std::sqrt(length)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "relative distance " << std::sqrt(apart / length) << ", expected at most " << relative;
}

inline std::string lane_text(const Lane& lane) {
  const std::string dtype(dtype_name(lane.dtype));
  if (device::is_gpu()) return "gpu_" + dtype;
  return (lane.mode == StreamMode::inlined ? "inline" : "threaded") + std::to_string(lane.threads) + "_" + dtype;
}
inline std::string lane_name(const ::testing::TestParamInfo<Lane>& info) { return lane_text(info.param); }

/// The kernels under test and the oracle, each on a stream. The pool's memory comes poisoned.
class KernelsTest : public ::testing::TestWithParam<Lane> {
 protected:
  explicit KernelsTest(const device::Options& options = {})
      : threads_before_(omp_get_max_threads()),
        pool_(device::make_pool()),
        tested_stream_(device::make_stream(GetParam().mode)),
        reference_stream_(make_cpu_stream("oracle", StreamMode::inlined)),
        stream_(tested_stream_.get()),
        tested_(device::make_kernels(*pool_, options)),
        reference_(make_reference_kernels(*pool_)) {
    pool_->poison(true);
    omp_set_num_threads(GetParam().threads);
  }
  ~KernelsTest() override {
    omp_set_num_threads(threads_before_);
    EXPECT_EQ(pool_->stats().current, 0) << "scratch was not given back";
  }

  [[nodiscard]] DType dtype() const { return GetParam().dtype; }
  [[nodiscard]] HostTensor random(Shape shape, unsigned seed, double low = -1, double high = 1) const {
    return HostTensor::random(shape, dtype(), seed, low, high);
  }
  [[nodiscard]] HostTensor fresh(Shape shape) const { return {shape, dtype()}; }
  /// What a product of these results may be off by because it was rounded to 16 bits before its bias was added: seen of cuBLASLt 13.1 where
  /// the operands' rows (of k elements) are not a multiple of 16 bytes apart.
  [[nodiscard]] double rounding_before_bias(std::int64_t k, const HostTensor& product) const {
    return device::is_gpu() && dtype() != DType::f32 && k % 8 != 0 ? rounding(dtype()) * largest(product) : 0;
  }
  /// Runs calls on *stream_ with the oracle, when the tested kernels have done what they were asked for.
  void oracle(const std::function<void(Kernels&)>& calls) {
    tested_stream_->synchronize();
    stream_ = reference_stream_.get();
    calls(*reference_);
    stream_ = tested_stream_.get();
  }
  /// Runs the same calls on *stream_ with both and waits.
  void both(const std::function<void(Kernels&, bool is_reference)>& calls) {
    calls(*tested_, false);
    oracle([&](Kernels& kernels) { calls(kernels, true); });
  }

  int threads_before_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Stream> tested_stream_, reference_stream_;
  Stream* stream_;  // of the kernels that are called now
  std::unique_ptr<Kernels> tested_, reference_;
};

/// A result of the kernels under test and the oracle's, both starting from the same contents.
struct Pair {
  HostTensor tested, reference;
  explicit Pair(const HostTensor& start) : tested(start), reference(start) {}
  Pair(Shape shape, DType dtype) : tested(shape, dtype), reference(shape, dtype) {}
  [[nodiscard]] TensorView of(bool is_reference) { return is_reference ? reference.view() : tested.view(); }
  [[nodiscard]] ::testing::AssertionResult near(double absolute) const { return testing::near(tested, reference, absolute); }
  [[nodiscard]] ::testing::AssertionResult near_as_a_whole(double relative) const {
    return testing::near_as_a_whole(tested, reference, relative);
  }
};

inline auto all_lanes() { return ::testing::ValuesIn(device::lanes()); }

}  // namespace mica::testing

namespace mica::testing::device {
inline void PrintTo(const Lane& lane, std::ostream* out) { *out << lane_text(lane); }
}  // namespace mica::testing::device
