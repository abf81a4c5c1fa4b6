// SPDX-License-Identifier: Apache-2.0
#include "openblas.hpp"

#include <dlfcn.h>

namespace mica::train::bench {
namespace {

// Values of cblas.h, whose package need not be installed.
constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;
template <class T>
using Gemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const T* a, int lda, const T* b, int ldb,
                      float beta, float* c, int ldc);

template <class T>
void call(void* function, const ProductShape& s, const void* a, const void* b, void* c) {
  const auto n32 = [](std::int64_t n) { return static_cast<int>(n); };
  reinterpret_cast<Gemm<T>>(function)(kRowMajor, s.transposed_a ? kTrans : kNoTrans, s.transposed_b ? kTrans : kNoTrans, n32(s.m), n32(s.n),
                                      n32(s.k), 1.0F, static_cast<const T*>(a), n32(s.transposed_a ? s.m : s.k), static_cast<const T*>(b),
                                      n32(s.transposed_b ? s.k : s.n), 0.0F, static_cast<float*>(c), n32(s.n));
}

}  // namespace

void OpenBlas::Close::operator()(void* library) const { dlclose(library); }

std::optional<OpenBlas> OpenBlas::open(int num_threads) {
  OpenBlas blas;
  blas.library_.reset(dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL));
  if (!blas.library_) return std::nullopt;
  blas.sgemm_ = dlsym(blas.library_.get(), "cblas_sgemm");
  blas.sbgemm_ = dlsym(blas.library_.get(), "cblas_sbgemm");
  if (void* set = dlsym(blas.library_.get(), "openblas_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(set)(num_threads);
  }
  return blas;
}

bool OpenBlas::supports(DType dtype) const { return (dtype == DType::f32 ? sgemm_ : sbgemm_) != nullptr; }

void OpenBlas::run(const ProductShape& shape, const void* a, const void* b, void* c) const {
  if (shape.dtype == DType::f32) {
    call<float>(sgemm_, shape, a, b, c);
  } else {
    call<std::uint16_t>(sbgemm_, shape, a, b, c);
  }
}

}  // namespace mica::train::bench
