// SPDX-License-Identifier: Apache-2.0
#include "mica/core/dtype.hpp"

#include <array>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/core/half.hpp"

namespace mica {
namespace {

constexpr std::array<std::tuple<DType, const char*, std::int64_t, bool>, 10> kAll{{{DType::f32, "fp32", 4, true},
                                                                                   {DType::bf16, "bf16", 2, true},
                                                                                   {DType::f16, "fp16", 2, true},
                                                                                   {DType::f64, "fp64", 8, true},
                                                                                   {DType::i64, "int64", 8, false},
                                                                                   {DType::i32, "int32", 4, false},
                                                                                   {DType::u16, "uint16", 2, false},
                                                                                   {DType::u8, "uint8", 1, false},
                                                                                   {DType::moment8, "moment8", 1, false},
                                                                                   {DType::square8, "square8", 1, false}}};

TEST(DType, NamesBytesAndKinds) {
  for (const auto& [dtype, name, bytes, floating] : kAll) {
    EXPECT_EQ(dtype_name(dtype), name);
    EXPECT_EQ(dtype_from_name(name), dtype);
    EXPECT_EQ(dtype_bytes(dtype), bytes) << name;
    EXPECT_EQ(is_floating(dtype), floating) << name;
  }
}

TEST(DType, AnUnknownNameIsTheUsersMistakeAndListsTheKnownOnes) {
  for (const char* name : {"float32", "", "FP32", "bf16 "}) {
    try {
      (void)dtype_from_name(name);
      FAIL() << "accepted '" << name << "'";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("'" + std::string(name) + "'"));
      for (const auto& [dtype, known, bytes, floating] : kAll) EXPECT_THAT(error.what(), ::testing::HasSubstr(known));
    }
  }
}

TEST(DType, OfCppTypes) {
  static_assert(dtype_of<float>::value == DType::f32 && dtype_of<double>::value == DType::f64);
  static_assert(dtype_of<bf16>::value == DType::bf16 && dtype_of<f16>::value == DType::f16);
  static_assert(dtype_of<std::int64_t>::value == DType::i64 && dtype_of<std::int32_t>::value == DType::i32);
  static_assert(dtype_of<std::uint16_t>::value == DType::u16 && dtype_of<std::uint8_t>::value == DType::u8);
}

}  // namespace
}  // namespace mica
