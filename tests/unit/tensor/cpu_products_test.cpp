// SPDX-License-Identifier: Apache-2.0
#include "product_testing.hpp"

namespace mica::cpu {
namespace {

ProductSpec of_rows(std::int64_t rows) { return {.m = rows, .n = 8, .k = 8, .lda = 8, .ldb = 8, .ldc = 8}; }

// As in a generation whose prompts have many lengths: every length took some memory that never came back.
TEST(Products, OnlyThoseUsedLastAreKept) {
  constexpr std::int64_t kRows = 100;  // more than a thin product has
  Products products(Products::processor_has_bf16());
  const std::shared_ptr<const Product> first = products.find(of_rows(kRows));
  const std::shared_ptr<const Product> often = products.find(of_rows(kRows + 1));
  for (std::int64_t i = 2; i < 1100; ++i) {
    (void)products.find(of_rows(kRows + i));
    EXPECT_EQ(products.find(of_rows(kRows + 1)), often);
  }
  EXPECT_EQ(products.made().num, 1100);
  (void)products.find(of_rows(kRows + 1099));
  EXPECT_EQ(products.made().num, 1100);
  EXPECT_NE(products.find(of_rows(kRows)), first);
  EXPECT_EQ(products.made().num, 1101);
  expect_exact(*first, of_rows(kRows));  // a task that has it may still run it
}

}  // namespace
}  // namespace mica::cpu
