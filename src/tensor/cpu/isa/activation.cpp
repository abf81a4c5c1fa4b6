// SPDX-License-Identifier: Apache-2.0
#include "elements.hpp"
#include "install.hpp"
#include "math.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

void activation(Activation f, DType dtype, const void* x, void* y, std::int64_t begin, std::int64_t end) {
  element::with_activation(f, [=](auto chosen) {
    with_type(dtype, [=](auto type) {
      const auto* from = typed(x, type);
      auto* to = typed(y, type);
      for_vectors(begin, end, [=](std::int64_t i, auto lanes) {
        store(to + i, element::activation<decltype(chosen)::value, VectorMath>(load(from + i, lanes)), lanes);
      });
    });
  });
}

void activation_backward(Activation f, DType dtype, const void* x, const void* dy, void* dx, std::int64_t begin, std::int64_t end) {
  element::with_activation(f, [=](auto chosen) {
    with_type(dtype, [=](auto type) {
      const auto *px = typed(x, type), *pdy = typed(dy, type);
      auto* to = typed(dx, type);
      for_vectors(begin, end, [=](std::int64_t i, auto lanes) {
        store(to + i, element::activation_gradient<decltype(chosen)::value, VectorMath>(load(px + i, lanes), load(pdy + i, lanes)), lanes);
      });
    });
  });
}

void swiglu(DType dtype, const void* gate, const void* up, void* y, std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) {
    const auto *pg = typed(gate, type), *pu = typed(up, type);
    auto* to = typed(y, type);
    for_vectors(begin, end, [=](std::int64_t i, auto lanes) {
      store(to + i, element::silu<VectorMath>(load(pg + i, lanes)) * load(pu + i, lanes), lanes);
    });
  });
}

void swiglu_backward(DType dtype, const void* gate, const void* up, const void* dy, void* dgate, void* dup, std::int64_t begin,
                     std::int64_t end) {
  with_type(dtype, [=](auto type) {
    const auto *pg = typed(gate, type), *pu = typed(up, type), *pdy = typed(dy, type);
    auto *to_gate = typed(dgate, type), *to_up = typed(dup, type);
    for_vectors(begin, end, [=](std::int64_t i, auto lanes) {
      const auto silu = element::silu_with_slope<VectorMath>(load(pg + i, lanes));
      const F32 u = load(pu + i, lanes), d = load(pdy + i, lanes);
      if (to_gate) store(to_gate + i, d * u * silu.slope, lanes);
      if (to_up) store(to_up + i, d * silu.value, lanes);
    });
  });
}

}  // namespace

void install_activation(Loops& table) {
  table.activation = activation;
  table.activation_backward = activation_backward;
  table.swiglu = swiglu;
  table.swiglu_backward = swiglu_backward;
}

}  // namespace mica::cpu::MICA_ISA
