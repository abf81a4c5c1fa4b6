// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <vector>

#include <cublasLt.h>
#include <gtest/gtest.h>

#include "mica/core/half.hpp"

#include "cuda_emulation.hpp"
#include "device_array.hpp"

namespace mica::cuda_emulation {
namespace {

struct Stored {
  int rows = 0, cols = 0;
  bool by_row = false;
  int ld = 0;
  cudaDataType_t type = CUDA_R_32F;
};

/// One product with its descriptors; attributes as cuBLASLt wants them.
class Product {
 public:
  Product(Stored a, Stored b, Stored d, cublasComputeType_t compute = CUBLAS_COMPUTE_32F, int batches = 1) {
    EXPECT_EQ(cublasLtCreate(&library_), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulDescCreate(&op_, compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
    for (const auto& [layout, it] : {std::pair(&a_, a), {&b_, b}, {&d_, d}}) {
      cublasLtMatrixLayoutCreate(layout, it.type, static_cast<std::uint64_t>(it.rows), static_cast<std::uint64_t>(it.cols), it.ld);
      const std::int32_t order = it.by_row ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
      const std::int32_t count = batches;
      const std::int64_t stride = static_cast<std::int64_t>(it.ld) * (it.by_row ? it.rows : it.cols);
      cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof(order));
      cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count));
      cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride));
    }
  }
  ~Product() {
    for (auto* layout : {a_, b_, d_}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulPreferenceDestroy(preference_);
    cublasLtMatmulDescDestroy(op_);
    cublasLtDestroy(library_);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  template <class T>
  cublasStatus_t set(cublasLtMatmulDescAttributes_t attribute, T value) {
    return cublasLtMatmulDescSetAttribute(op_, attribute, &value, sizeof(value));
  }
  template <class T>
  cublasStatus_t prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    return cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof(value));
  }
  cublasStatus_t heuristic(cublasLtMatmulHeuristicResult_t& result) {
    int count = 0;
    return cublasLtMatmulAlgoGetHeuristic(library_, op_, a_, b_, d_, d_, preference_, 1, &result, &count);
  }
  cublasStatus_t run(const void* a, const void* b, void* d, float alpha = 1, float beta = 0, const cublasLtMatmulAlgo_t* algo = nullptr,
                     void* space = nullptr, std::size_t space_bytes = 0) {
    return cublasLtMatmul(library_, op_, &alpha, a, a_, b, b_, &beta, d, d_, d, d_, algo, space, space_bytes, nullptr);
  }

 private:
  cublasLtHandle_t library_ = nullptr;
  cublasLtMatmulDesc_t op_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
};

/// Small whole numbers: every product here is exact in every type.
std::vector<float> numbers(int count, int seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = static_cast<float>((i * 7 + seed * 5) % 9 - 4);
  return values;
}
template <class T>
std::vector<T> as(const std::vector<float>& values) {
  std::vector<T> out;
  for (const float value : values) out.push_back(T(value));
  return out;
}

constexpr int kM = 7, kN = 5, kK = 150;  // longer than one block of the sum

float element(const std::vector<float>& values, const Stored& it, bool transposed, int row, int col) {
  if (transposed) std::swap(row, col);
  return values[static_cast<std::size_t>(it.by_row ? row * it.ld + col : col * it.ld + row)];
}

TEST(CublasLt, ProductsInEveryOrderWithEveryTranspose) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      for (const int by_row : {0, 1, 2, 4, 7}) {
        const auto stored = [&](int rows, int cols, bool transposed, bool row_major) {
          if (transposed) std::swap(rows, cols);
          return Stored{rows, cols, row_major, (row_major ? cols : rows) + 3};
        };
        const Stored a = stored(kM, kK, ta, by_row & 1), b = stored(kK, kN, tb, by_row & 2), d = stored(kM, kN, false, by_row & 4);
        const int batches = 2;
        const auto count = [](const Stored& it) { return it.ld * (it.by_row ? it.rows : it.cols); };
        const auto host_a = numbers(batches * count(a), 1), host_b = numbers(batches * count(b), 2),
                   before = numbers(batches * count(d), 3);
        const DeviceArray<float> device_a(host_a), device_b(host_b), device_d(before);
        Product product(a, b, d, CUBLAS_COMPUTE_32F, batches);
        product.set(CUBLASLT_MATMUL_DESC_TRANSA, static_cast<std::int32_t>(ta));
        product.set(CUBLASLT_MATMUL_DESC_TRANSB, static_cast<std::int32_t>(tb));
        ASSERT_EQ(product.run(device_a.data(), device_b.data(), device_d.data(), 2, 3), CUBLAS_STATUS_SUCCESS);
        auto expected = before;
        for (int batch = 0; batch < batches; ++batch) {
          const std::vector<float> x(host_a.begin() + batch * count(a), host_a.end());
          const std::vector<float> y(host_b.begin() + batch * count(b), host_b.end());
          for (int i = 0; i < kM; ++i) {
            for (int j = 0; j < kN; ++j) {
              float sum = 0;
              for (int p = 0; p < kK; ++p) sum += element(x, a, ta, i, p) * element(y, b, tb, p, j);
              auto& to = expected[static_cast<std::size_t>(batch * count(d) + (d.by_row ? i * d.ld + j : j * d.ld + i))];
              to = 2 * sum + 3 * to;
            }
          }
        }
        ASSERT_EQ(device_d.host(), expected) << ta << tb << by_row;
      }
    }
  }
}

TEST(CublasLt, HalvesRoundOnceAtTheEnd) {
  const std::vector<float> host_a = numbers(kM * kK, 1), host_b = numbers(kK * kN, 2);
  const DeviceArray<bf16> a(as<bf16>(host_a)), b(as<bf16>(host_b));
  const DeviceArray<float> wide(std::vector<float>(kM * kN));
  const DeviceArray<bf16> narrow(std::vector<bf16>(kM * kN));
  const Stored stored_a{kM, kK, false, kM, CUDA_R_16BF}, stored_b{kK, kN, false, kK, CUDA_R_16BF};
  Product to_float(stored_a, stored_b, {kM, kN, false, kM});
  ASSERT_EQ(to_float.run(a.data(), b.data(), wide.data()), CUBLAS_STATUS_SUCCESS);
  Product to_half(stored_a, stored_b, {kM, kN, false, kM, CUDA_R_16BF});
  ASSERT_EQ(to_half.run(a.data(), b.data(), narrow.data()), CUBLAS_STATUS_SUCCESS);
  const auto exact = wide.host();
  const auto rounded = narrow.host();
  for (std::size_t i = 0; i < exact.size(); ++i) {
    float sum = 0;
    for (int p = 0; p < kK; ++p) {
      sum += host_a[static_cast<std::size_t>(p * kM) + i % kM] * host_b[i / kM * kK + static_cast<std::size_t>(p)];
    }
    EXPECT_EQ(exact[i], sum);
    EXPECT_EQ(rounded[i].bits, bf16(sum).bits);
  }
}

TEST(CublasLt, Tf32KeepsTenBitsOfFactors) {
  const DeviceArray<float> a({1.0F + 0x1p-11F + 0x1p-12F}), b({3.0F}), d({0.0F});
  const Stored one{1, 1, false, 1};
  Product exact(one, one, one), fast(one, one, one, CUBLAS_COMPUTE_32F_FAST_TF32);
  ASSERT_EQ(exact.run(a.data(), b.data(), d.data()), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(d.host()[0], 3.0F * (1.0F + 0x1p-11F + 0x1p-12F));
  ASSERT_EQ(fast.run(a.data(), b.data(), d.data()), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(d.host()[0], 3.0F * (1.0F + 0x1p-10F));
}

TEST(CublasLt, Epilogues) {
  const int m = 8, n = 3, k = 2;
  const auto host_a = numbers(m * k, 1), host_b = numbers(k * n, 2), bias = numbers(m, 3);
  const DeviceArray<float> a(host_a), b(host_b), d(std::vector<float>(m * n)), aux(std::vector<float>(m * n));
  const auto run = [&](cublasLtEpilogue_t epilogue, const DeviceArray<float>& vector) {
    Product product({m, k, false, m}, {k, n, false, k}, {m, n, false, m});
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue));
    product.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector.data());
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.data());
    product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{m});
    EXPECT_EQ(product.run(a.data(), b.data(), d.data()), CUBLAS_STATUS_SUCCESS) << epilogue;
    return d.host();
  };
  const auto gelu = [](float x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); };
  const DeviceArray<float> device_bias(bias);
  const auto plain = run(CUBLASLT_EPILOGUE_DEFAULT, device_bias);
  const auto with_bias = run(CUBLASLT_EPILOGUE_BIAS, device_bias);
  const auto with_gelu = run(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, device_bias);
  EXPECT_EQ(aux.host(), with_bias);
  EXPECT_EQ(run(CUBLASLT_EPILOGUE_GELU_BIAS, device_bias), with_gelu);
  const auto gradient = run(CUBLASLT_EPILOGUE_DGELU, device_bias);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      const auto at = static_cast<std::size_t>(j * m + i);
      const float x = plain[at] + bias[static_cast<std::size_t>(i)];
      EXPECT_EQ(with_bias[at], x);
      EXPECT_NEAR(with_gelu[at], gelu(x), 1e-5);
      EXPECT_NEAR(gradient[at], plain[at] * (gelu(x + 1e-2F) - gelu(x - 1e-2F)) / 2e-2, 2e-2);
    }
  }
}

TEST(CublasLt, RefusesWhatIsNotPromised) {
  const Stored a{4, 8, false, 4}, b{8, 4, false, 8}, d{4, 4, false, 4};
  const DeviceArray<float> x(std::vector<float>(32)), y(std::vector<float>(32)), z(std::vector<float>(33));
  const auto run = [&](Stored p, Stored q, Stored r, cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
    return Product(p, q, r, compute).run(x.data(), y.data(), z.data());
  };
  EXPECT_EQ(run(a, b, d), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run({4, 8, false, 3}, b, d), CUBLAS_STATUS_INVALID_VALUE);  // columns overlap
  EXPECT_EQ(run({4, 7, false, 4}, b, d), CUBLAS_STATUS_INVALID_VALUE);  // sums of unequal length
  EXPECT_EQ(run({4, 8, false, 4, CUDA_R_16BF}, b, d), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(run(a, b, {4, 4, false, 4, CUDA_R_16BF}), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(run(a, b, d, CUBLAS_COMPUTE_16F), CUBLAS_STATUS_NOT_SUPPORTED);
  Product product(a, b, d);
  std::vector<float> pageable(32);
  EXPECT_EQ(product.run(pageable.data(), y.data(), z.data()), CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(product.run(x.data(), y.data(), y.data()), CUBLAS_STATUS_EXECUTION_FAILED);  // the result is a factor
  EXPECT_EQ(product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint8_t{4}), CUBLAS_STATUS_INVALID_VALUE);
  product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_GELU_AUX));
  product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, y.data());
  product.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{12});  // no multiple of 8
  EXPECT_EQ(product.run(x.data(), y.data(), z.data()), CUBLAS_STATUS_INVALID_VALUE);
}

TEST(CublasLt, AlgorithmsKeepToWhatWasPreferred) {
  const Stored a{4, 8, false, 4}, b{8, 4, false, 8}, d{4, 4, false, 4};
  const DeviceArray<float> x(std::vector<float>(33)), y(std::vector<float>(32)), z(std::vector<float>(32));
  Product product(a, b, d);
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    ASSERT_EQ(product.prefer(attribute, std::uint32_t{16}), CUBLAS_STATUS_SUCCESS);
  }
  cublasLtMatmulHeuristicResult_t result{};
  ASSERT_EQ(product.heuristic(result), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(result.workspaceSize, 0U);  // none allowed so far
  EXPECT_EQ(product.run(x.data() + 1, y.data(), z.data(), 1, 0, &result.algo), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(product.run(x.data(), y.data(), z.data(), 1, 0, &result.algo), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(product.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{1} << 20), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(product.heuristic(result), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(result.workspaceSize, 64U);
  const DeviceArray<char> space(std::vector<char>(64));
  EXPECT_EQ(product.run(x.data(), y.data(), z.data(), 1, 0, &result.algo, space.data(), 63), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(product.run(x.data(), y.data(), z.data(), 1, 0, &result.algo, space.data(), 64), CUBLAS_STATUS_SUCCESS);
  fail_next("cublasLtMatmul", CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(product.run(x.data(), y.data(), z.data()), CUBLAS_STATUS_EXECUTION_FAILED);
}

}  // namespace
}  // namespace mica::cuda_emulation
