// SPDX-License-Identifier: Apache-2.0
#include "mica/tensor/raw_product.hpp"

#include <vector>

#include "onednn_product.hpp"
#include "products.hpp"

namespace mica {
namespace {

class OnednnRawProduct final : public RawProduct {
 public:
  explicit OnednnRawProduct(const cpu::ProductSpec& spec) : product_(engine_, stream_, spec) {
    // Memory of its own: the product that Mica is compared with must not use Mica's pool.
    scratch_.resize(static_cast<std::size_t>(product_.scratch_bytes() / 64 + 2) * 8);
  }
  void run(const void* a, const void* b, void* c) override {
    void* aligned = scratch_.data();
    std::size_t space = scratch_.size() * sizeof(double);
    product_.run(a, b, nullptr, c, std::align(64, static_cast<std::size_t>(product_.scratch_bytes()), aligned, space));
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  cpu::OnednnProduct product_;
  std::vector<double> scratch_;
};

}  // namespace

std::unique_ptr<RawProduct> make_raw_product(const ProductShape& s, std::int64_t gap) {
  const cpu::ProductSpec spec{.m = s.m,
                              .n = s.n,
                              .k = s.k,
                              .lda = s.transposed_a ? s.m : s.k,
                              .ldb = s.transposed_b ? s.k : s.n,
                              .ldc = s.n + gap,
                              .transposed_a = s.transposed_a,
                              .transposed_b = s.transposed_b,
                              .a = s.dtype,
                              .b = s.dtype,
                              .c = s.dtype};
  if (!cpu::onednn_supports(spec, cpu::Products::processor_has_bf16())) return nullptr;
  return std::make_unique<OnednnRawProduct>(spec);
}

}  // namespace mica
