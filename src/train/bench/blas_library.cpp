// SPDX-License-Identifier: Apache-2.0
#include "blas_library.hpp"

#include <utility>

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

struct KnownLibrary {
  const char *name, *file, *set_threads, *bf16_product;
  bool counts_in_64_bits = false;  // the argument of set_threads
};
constexpr KnownLibrary kLibraries[] = {{"OpenBLAS", "libopenblas.so.0", "openblas_set_num_threads", "cblas_sbgemm"},
                                       {"BLIS", "libblis.so.4", "bli_thread_set_num_threads", nullptr, true},
                                       {"MKL", "libmkl_rt.so.2", "MKL_Set_Num_Threads", "cblas_gemm_bf16bf16f32"}};

}  // namespace

void BlasLibrary::Close::operator()(void* library) const { dlclose(library); }

std::vector<BlasLibrary> BlasLibrary::find(int num_threads) {
  std::vector<BlasLibrary> found;
  for (const KnownLibrary& known : kLibraries) {
    BlasLibrary blas;
    blas.name_ = known.name;
    blas.library_.reset(dlopen(known.file, RTLD_NOW | RTLD_LOCAL));
    void* library = blas.library_.get();
    if (library == nullptr) continue;
    blas.f32_product_ = dlsym(library, "cblas_sgemm");
    if (known.bf16_product != nullptr) blas.bf16_product_ = dlsym(library, known.bf16_product);
    if (void* set = dlsym(library, known.set_threads)) {
      if (known.counts_in_64_bits) {
        reinterpret_cast<void (*)(std::int64_t)>(set)(num_threads);
      } else {
        reinterpret_cast<void (*)(int)>(set)(num_threads);
      }
    }
    found.push_back(std::move(blas));
  }
  return found;
}

bool BlasLibrary::supports(DType dtype) const {
  return (dtype == DType::f32 ? f32_product_ : dtype == DType::bf16 ? bf16_product_ : nullptr) != nullptr;
}

void BlasLibrary::run(const ProductShape& shape, const void* a, const void* b, void* c) const {
  if (shape.dtype == DType::f32) {
    call<float>(f32_product_, shape, a, b, c);
  } else {
    call<std::uint16_t>(bf16_product_, shape, a, b, c);
  }
}

}  // namespace mica::train::bench
