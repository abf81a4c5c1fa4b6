#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "mica/tensor/kernels.hpp"

// What the tests of the CPU kernels against the oracle share.
namespace mica::testing {

/// Host memory of one tensor. Fresh ones hold NaN (integers: garbage), so that an element that a kernel forgets to
/// write is seen.
class HostTensor {
 public:
  HostTensor(Shape shape, DType dtype) : shape_(shape), dtype_(dtype) {
    bytes_.assign(static_cast<std::size_t>(shape.numel() * dtype_bytes(dtype)) + 1, std::byte{0xff});
  }
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
  operator TensorView() { return view(); }            // NOLINT(google-explicit-constructor)
  operator ConstTensorView() { return view(); }       // NOLINT(google-explicit-constructor)

  [[nodiscard]] double at(std::int64_t i) const {
    switch (dtype_) {
      case DType::f32: return static_cast<double>(element<float>(i));
      case DType::f64: return element<double>(i);
      case DType::bf16: return static_cast<double>(static_cast<float>(element<bf16>(i)));
      case DType::f16: return static_cast<double>(static_cast<float>(element<f16>(i)));
      case DType::i32: return element<std::int32_t>(i);
      case DType::i64: return static_cast<double>(element<std::int64_t>(i));
      case DType::u16: return element<std::uint16_t>(i);
      case DType::u8: return element<std::uint8_t>(i);
    }
    return 0;
  }
  void set(std::int64_t i, double value) {
    switch (dtype_) {
      case DType::f32: return put(i, static_cast<float>(value));
      case DType::f64: return put(i, value);
      case DType::bf16: return put(i, bf16(static_cast<float>(value)));
      case DType::f16: return put(i, f16(static_cast<float>(value)));
      case DType::i32: return put(i, static_cast<std::int32_t>(value));
      case DType::i64: return put(i, static_cast<std::int64_t>(value));
      case DType::u16: return put(i, static_cast<std::uint16_t>(value));
      case DType::u8: return put(i, static_cast<std::uint8_t>(value));
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
  std::vector<std::byte> bytes_;  // one more than needed: never empty, and the last must stay 0xff
};

/// Rounding of one result into a dtype, relative: one unit, since exact results close to a tie round to either side.
inline double rounding(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f16 ? 0x1p-10 : 0x1p-23;
}
/// An f32 sum of `depth` products of numbers up to a and b: each of the additions may err by half a unit of the
/// largest partial sum, which is at most depth * a * b.
inline double sum_error(std::int64_t depth, double a = 1, double b = 1) {
  const auto n = static_cast<double>(depth);
  return n * 0x1p-24 * n * a * b;
}

/// |got - want| <= absolute + rounding(dtype) * |want| for every element; NaN never passes.
inline ::testing::AssertionResult near(const HostTensor& got, const HostTensor& want, double absolute) {
  if (got.numel() != want.numel()) return ::testing::AssertionFailure() << "numels differ";
  for (std::int64_t i = 0; i < got.numel(); ++i) {
    const double allowed = absolute + rounding(got.dtype()) * std::abs(want.at(i));
    if (std::abs(got.at(i) - want.at(i)) <= allowed) continue;
    return ::testing::AssertionFailure() << "element " << i << " of " << got.shape().to_string() << " "
                                         << dtype_name(got.dtype()) << " is " << got.at(i) << ", expected "
                                         << want.at(i) << " within " << allowed;
  }
  return ::testing::AssertionSuccess();
}

/// How a test's stream runs and on how many OpenMP threads.
struct Lane {
  StreamMode mode;
  int threads;
  DType dtype;
};
inline void PrintTo(const Lane& lane, std::ostream* out) {
  *out << (lane.mode == StreamMode::inlined ? "inline " : "threaded ") << lane.threads << " " << dtype_name(lane.dtype);
}
inline std::string lane_name(const ::testing::TestParamInfo<Lane>& info) {
  return std::string(info.param.mode == StreamMode::inlined ? "inline" : "threaded") +
         std::to_string(info.param.threads) + "_" + std::string(dtype_name(info.param.dtype));
}

/// The kernels under test and the oracle, on one stream. The pool's memory comes poisoned.
class KernelsTest : public ::testing::TestWithParam<Lane> {
 protected:
  explicit KernelsTest(const CpuKernelsOptions& options = {})
      : threads_before_(omp_get_max_threads()),
        pool_(make_cpu_pool()),
        stream_(make_cpu_stream("test", GetParam().mode)),
        cpu_(make_cpu_kernels(*pool_, options)),
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
  /// Runs the same calls with both and waits.
  void both(const std::function<void(Kernels&, bool is_reference)>& calls) {
    calls(*cpu_, false);
    stream_->synchronize();
    calls(*reference_, true);
    stream_->synchronize();
  }

  int threads_before_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Kernels> cpu_, reference_;
};

/// A result of the kernels under test and the oracle's, both starting from the same contents.
struct Pair {
  HostTensor cpu, reference;
  explicit Pair(const HostTensor& start) : cpu(start), reference(start) {}
  Pair(Shape shape, DType dtype) : cpu(shape, dtype), reference(shape, dtype) {}
  [[nodiscard]] TensorView of(bool is_reference) { return is_reference ? reference.view() : cpu.view(); }
  [[nodiscard]] ::testing::AssertionResult near(double absolute) const { return testing::near(cpu, reference, absolute); }
};

#if defined(__SANITIZE_THREAD__)
inline constexpr int kManyThreads = 1;  // gcc's OpenMP runtime gives false reports
#else
inline constexpr int kManyThreads = 3;
#endif

inline auto all_lanes() {
  return ::testing::Values(Lane{StreamMode::inlined, 1, DType::f32}, Lane{StreamMode::threaded, 1, DType::bf16},
                           Lane{StreamMode::threaded, kManyThreads, DType::f32},
                           Lane{StreamMode::inlined, kManyThreads, DType::bf16},
                           Lane{StreamMode::inlined, 1, DType::f16}, Lane{StreamMode::threaded, kManyThreads, DType::f16});
}

}  // namespace mica::testing
