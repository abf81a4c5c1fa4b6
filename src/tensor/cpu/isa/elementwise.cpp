// SPDX-License-Identifier: Apache-2.0
#include "install.hpp"
#include "moments.hpp"

namespace mica::cpu::MICA_ISA {
namespace {

void add(DType dtype, const void* a, const void* b, void* y, std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) {
    const auto *pa = typed(a, type), *pb = typed(b, type);
    auto* py = typed(y, type);
    for_vectors(begin, end, [=](std::int64_t i, auto lanes) { store(py + i, load(pa + i, lanes) + load(pb + i, lanes), lanes); });
  });
}

void scale(const void* src, DType src_dtype, float factor, void* dst, DType dst_dtype, Write mode, std::int64_t begin, std::int64_t end) {
  with_type(src_dtype, [=](auto src_type) {
    with_type(dst_dtype, [=](auto dst_type) {
      const auto* from = typed(src, src_type);
      auto* to = typed(dst, dst_type);
      if (mode == Write::overwrite) {
        for_vectors(begin, end, [=](std::int64_t i, auto lanes) { store(to + i, factor * load(from + i, lanes), lanes); });
      } else {
        for_vectors(begin, end,
                    [=](std::int64_t i, auto lanes) { store(to + i, load(to + i, lanes) + factor * load(from + i, lanes), lanes); });
      }
    });
  });
}

std::int64_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::u8:
    case DType::moment8:
    case DType::square8:
      return 1;
    default:
      return 2;
  }
}

void convert(const void* src, DType src_dtype, void* dst, DType dst_dtype, std::int64_t begin, std::int64_t end) {
  if (src_dtype == dst_dtype) {
    const std::int64_t bytes = bytes_of(src_dtype);
    if (begin < end) {
      __builtin_memmove(static_cast<char*>(dst) + begin * bytes, static_cast<const char*>(src) + begin * bytes,
                        static_cast<std::size_t>((end - begin) * bytes));
    }
    return;
  }
  with_stored_type(src_dtype, [=](auto src_type) {
    with_stored_type(dst_dtype, [=](auto dst_type) {
      const auto* from = typed(src, src_type);
      auto* to = typed(dst, dst_type);
      for_vectors(begin, end, [=](std::int64_t i, auto lanes) { store_state(to + i, load_state(from + i, lanes), lanes); });
    });
  });
}

template <class T>
void fill_with(void* x, T value, std::int64_t begin, std::int64_t end) {
  auto* p = static_cast<T*>(x);
  for (std::int64_t i = begin; i < end; ++i) p[i] = value;
}

void fill(void* x, DType dtype, double value, std::int64_t begin, std::int64_t end) {
  const F32 v = splat(static_cast<float>(value));
  switch (dtype) {
    case DType::f64:
      return fill_with(x, value, begin, end);
    case DType::i64:
      return fill_with(x, static_cast<std::int64_t>(value), begin, end);
    case DType::f32:
      return fill_with(x, static_cast<float>(value), begin, end);
    case DType::i32:
      return fill_with(x, static_cast<std::int32_t>(value), begin, end);
    case DType::bf16:
      return fill_with(x, to_words(v, Bf16{})[0], begin, end);
    case DType::f16:
      return fill_with(x, to_words(v, F16{})[0], begin, end);
    case DType::u16:
      return fill_with(x, static_cast<std::uint16_t>(value), begin, end);
    case DType::u8:
      return fill_with(x, static_cast<std::uint8_t>(value), begin, end);
    case DType::moment8:
      return fill_with(x, static_cast<std::uint8_t>(nearest_moment_code<Moment8Code, VectorMath>(v)[0]), begin, end);
    case DType::square8:
      return fill_with(x, static_cast<std::uint8_t>(nearest_moment_code<Square8Code, VectorMath>(v)[0]), begin, end);
  }
}

/// Sources are read once, kVectors vectors at a time, so that many of them do not thrash the few open memory pages.
template <class Type, class Combine>
MICA_INLINE void fold(Type type, const void* const* sources, std::int64_t num_sources, void* dst, std::int64_t begin, std::int64_t end,
                      Combine combine) {
  constexpr int kVectors = 4;
  auto* to = typed(dst, type);
  std::int64_t i = begin;
  for (; i + kVectors * kLanes <= end; i += kVectors * kLanes) {
    F32 acc[kVectors] = {};
    for (std::int64_t s = 0; s < num_sources; ++s) {
      const auto* from = typed(sources[s], type) + i;
      for (int v = 0; v < kVectors; ++v) {
        const F32 x = load(from + v * kLanes);
        acc[v] = s == 0 ? x : combine(acc[v], x);
      }
    }
    for (int v = 0; v < kVectors; ++v) store(to + i + v * kLanes, acc[v]);
  }
  for_vectors(i, end, [=](std::int64_t j, auto lanes) {
    F32 acc{};
    for (std::int64_t s = 0; s < num_sources; ++s) {
      const F32 x = load(typed(sources[s], type) + j, lanes);
      acc = s == 0 ? x : combine(acc, x);
    }
    store(to + j, acc, lanes);
  });
}

void fold_sum(DType dtype, const void* const* sources, std::int64_t num_sources, void* dst, std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) { fold(type, sources, num_sources, dst, begin, end, [](F32 a, F32 b) { return a + b; }); });
}

void fold_max(DType dtype, const void* const* sources, std::int64_t num_sources, void* dst, std::int64_t begin, std::int64_t end) {
  with_type(dtype, [=](auto type) { fold(type, sources, num_sources, dst, begin, end, [](F32 a, F32 b) { return max_or_nan(a, b); }); });
}

}  // namespace

void install_elementwise(Loops& table) {
  table.add = add;
  table.scale = scale;
  table.convert = convert;
  table.fill = fill;
  table.fold_sum = fold_sum;
  table.fold_max = fold_max;
}

}  // namespace mica::cpu::MICA_ISA
