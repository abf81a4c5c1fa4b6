// SPDX-License-Identifier: Apache-2.0
#include "elements.hpp"
#include "install.hpp"
#include "math.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

void rotate_heads(DType dtype, const void* x, const float* cos, const float* sin, std::int64_t heads, std::int64_t half, void* y) {
  with_type(dtype, [=](auto type) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto* from = typed(x, type) + head * 2 * half;
      auto* to = typed(y, type) + head * 2 * half;
      for_vectors(0, half, [=](std::int64_t i, auto lanes) MICA_INLINE_LAMBDA {
        const F32 a = load(from + i, lanes), b = load(from + half + i, lanes);
        const F32 c = load(cos + i, lanes), s = load(sin + i, lanes);
        const auto turned = element::turn(a, b, c, s);
        store(to + i, turned.a, lanes);
        store(to + half + i, turned.b, lanes);
      });
    }
  });
}

}  // namespace

void install_rotary(Loops& table) { table.rotate_heads = rotate_heads; }

}  // namespace mica::cpu::MICA_ISA
