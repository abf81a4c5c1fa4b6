// SPDX-License-Identifier: Apache-2.0
#include "mica/tensor/host_math.hpp"

#include "mica/core/error.hpp"

#include "loops_testing.hpp"

namespace mica {
namespace {
using testing::Array;
using testing::normal_array;

TEST(HostMath, FoldsInOrder) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t n : {0, 1, 3, 130}) {
      const Array a = normal_array(dtype, n, 1), b = normal_array(dtype, n, 2), c = normal_array(dtype, n, 3);
      const std::vector<const void*> sources{a.data(), b.data(), c.data()};
      Array sum(dtype, n), max(dtype, n);
      fold_sum(sources, sum.data(), n, dtype);
      fold_max(sources, max.data(), n, dtype);
      Array expected_sum(dtype, n), expected_max(dtype, n);
      for (std::int64_t i = 0; i < n; ++i) {
        expected_sum.set(i, static_cast<double>((static_cast<float>(a[i]) + static_cast<float>(b[i])) + static_cast<float>(c[i])));
        expected_max.set(i, std::max({a[i], b[i], c[i]}));
      }
      EXPECT_EQ(sum, expected_sum);
      EXPECT_EQ(max, expected_max);
    }
  }
}

TEST(HostMath, ConvertsAndCopies) {
  const Array x(DType::f32, {1, 1.00390625, 1e-8, -3e38});
  Array y(DType::bf16, 4);
  convert(x.data(), DType::f32, y.data(), DType::bf16, 4);
  EXPECT_EQ(y, Array(DType::bf16, {1, 1, 1e-8, -3e38}));  // 1 + 2^-8 is a tie: to even
  const std::int64_t from[3] = {1, -2, 3};
  std::int64_t to[3] = {0, 0, 9};
  convert(from, DType::i64, to, DType::i64, 2);
  EXPECT_EQ(to[0], 1);
  EXPECT_EQ(to[1], -2);
  EXPECT_EQ(to[2], 9);
}

TEST(HostMath, RefusesIntegers) {
  std::int32_t x[1] = {1};
  const void* sources[1] = {x};
  EXPECT_THROW(fold_sum(sources, x, 1, DType::i32), ConfigError);
  EXPECT_THROW(fold_max(sources, x, 1, DType::i32), ConfigError);
  EXPECT_THROW(convert(x, DType::i32, x, DType::f32, 1), ConfigError);
}

}  // namespace
}  // namespace mica
