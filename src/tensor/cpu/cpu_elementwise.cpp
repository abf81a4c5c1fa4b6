// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "../arguments.hpp"
#include "cpu_kernels.hpp"
#include "loops.hpp"

namespace mica::cpu {

using namespace arguments;  // NOLINT(google-build-using-namespace)

void CpuKernels::add(Stream& s, ConstTensorView a, ConstTensorView b, TensorView y) {
  const std::int64_t n = y.numel();
  expect("add", "y", y, n, kFloats);
  expect("add", "a", a, n, {y.dtype});
  expect("add", "b", b, n, {y.dtype});
  enqueue(s, "add", {reads(a), reads(b), mica::writes(y)}, [a, b, y, n] {
    parallel_ranges(n, kElementGrain,
                    [&](std::int64_t begin, std::int64_t end) { loops().add(y.dtype, a.data, b.data, y.data, begin, end); });
  });
}

void CpuKernels::scale(Stream& s, ConstTensorView src, double factor, TensorView dst, Write mode) {
  const std::int64_t n = dst.numel();
  expect("scale", "dst", dst, n, kFloats);
  expect("scale", "src", src, n, kFloats);
  enqueue(s, "scale", {reads(src), mica::writes(dst)}, [src, factor = static_cast<float>(factor), dst, mode, n] {
    parallel_ranges(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
      loops().scale(src.data, src.dtype, factor, dst.data, dst.dtype, mode, begin, end);
    });
  });
}

void CpuKernels::scale_by(Stream& s, TensorView x, ConstTensorView factor) {
  const std::int64_t n = x.numel();
  expect("scale_by", "x", x, n, kFloats);
  expect("scale_by", "factor", factor, 1, {DType::f32});
  enqueue(s, "scale_by", {reads(factor), mica::writes(x)}, [x, factor, n] {
    const float f = *factor.as<float>();
    if (f == 1.0F) return;
    parallel_ranges(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
      loops().scale(x.data, x.dtype, f, x.data, x.dtype, Write::overwrite, begin, end);
    });
  });
}

void CpuKernels::copy(Stream& s, ConstTensorView src, TensorView dst) {
  const std::int64_t n = dst.numel();
  expect("copy", "dst", dst, n, {dst.dtype});
  if (src.dtype == dst.dtype) {
    expect("copy", "src", src, n, {dst.dtype});
  } else {
    expect("copy", "src", src, n, kConvertible);
    expect_dtype("copy", "dst", dst, kConvertible);
  }
  enqueue(s, "copy", {reads(src), mica::writes(dst)}, [src, dst, n] {
    parallel_ranges(n, kElementGrain,
                    [&](std::int64_t begin, std::int64_t end) { loops().convert(src.data, src.dtype, dst.data, dst.dtype, begin, end); });
  });
}

void CpuKernels::copy_blocks(Stream& s, ConstTensorView src, TensorView dst, std::span<const BlockCopy> blocks) {
  expect("copy_blocks", "src", src, src.numel(), {dst.dtype});
  expect("copy_blocks", "dst", dst, dst.numel(), {dst.dtype});
  for (const BlockCopy& b : blocks) {
    const auto fits = [&](std::int64_t first, std::int64_t stride, std::int64_t numel) {
      return first >= 0 && stride >= 0 && first + (b.count - 1) * stride + b.numel <= numel;
    };
    require(b.count == 0 || (fits(b.src, b.src_stride, src.numel()) && fits(b.dst, b.dst_stride, dst.numel())),
            "copy_blocks: {} blocks of {} elements from {} to {} leave arrays of {} and {} elements", b.count, b.numel, b.src, b.dst,
            src.numel(), dst.numel());
  }
  const std::int64_t bytes = dtype_bytes(src.dtype);
  enqueue(s, "copy_blocks", {reads(src), mica::writes(dst)},
          [src, dst, bytes, list = std::vector<BlockCopy>(blocks.begin(), blocks.end())] {
            const auto* from = static_cast<const std::byte*>(src.data);
            auto* to = static_cast<std::byte*>(dst.data);
            for (const BlockCopy& b : list) {
              const auto copy = [&](std::int64_t block, std::int64_t begin, std::int64_t end) {
                std::memcpy(to + (b.dst + block * b.dst_stride + begin) * bytes, from + (b.src + block * b.src_stride + begin) * bytes,
                            static_cast<std::size_t>((end - begin) * bytes));
              };
              if (b.numel == 0) continue;
              if (b.count == 1) {
                parallel_ranges(b.numel, kElementGrain, [&](std::int64_t begin, std::int64_t end) { copy(0, begin, end); });
              } else {
                parallel_ranges(b.count, row_grain(b.numel), [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t block = begin; block < end; ++block) copy(block, 0, b.numel);
                });
              }
            }
          });
}

void CpuKernels::fill(Stream& s, TensorView x, double value) {
  const std::int64_t n = x.numel();
  expect("fill", "x", x, n, {x.dtype});
  enqueue(s, "fill", {mica::writes(x)}, [x, value, n] {
    parallel_ranges(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) { loops().fill(x.data, x.dtype, value, begin, end); });
  });
}

void CpuKernels::fill_normal(Stream& s, TensorView x, const RandomKey& key, std::int64_t begin, double std) {
  const std::int64_t n = x.numel();
  expect("fill_normal", "x", x, n, kFloats);
  require(begin >= 0, "fill_normal: begin is {}, expected 0 or more", begin);
  enqueue(s, "fill_normal", {mica::writes(x)}, [x, key, begin, std = static_cast<float>(std), n] {
    parallel_ranges(n, kElementGrain, [&](std::int64_t first, std::int64_t last) {
      loops().normal(x.dtype, x.slice(first, last - first).data, key, std, begin + first, begin + last);
    });
  });
}

}  // namespace mica::cpu
