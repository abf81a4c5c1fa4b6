// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "mica/tensor/random.hpp"

#include "reference_kernels.hpp"
#include "values.hpp"

namespace mica::reference {

void ReferenceKernels::dropout(Stream& s, ConstTensorView x, double p, const RandomKey& key, std::span<const std::int64_t> sequences,
                               TensorView y) {
  const std::int64_t rows = x.shape.num_dims() == 0 ? 1 : x.shape[0];
  invariant(static_cast<std::int64_t>(sequences.size()) == rows, "dropout: one sequence id per row");
  expect_numel(y, x.numel(), "dropout: y like x");
  const std::uint32_t threshold = dropout_threshold(p);
  s.submit("dropout", {reads(x), writes(y)}, [=, ids = std::vector<std::int64_t>(sequences.begin(), sequences.end())] {
    Values v = values(x);
    const std::int64_t row_numel = rows == 0 ? 0 : x.numel() / rows;
    for (std::int64_t b = 0; b < rows; ++b) {
      RandomKey row_key = key;
      row_key.sequence = static_cast<std::uint64_t>(ids[static_cast<std::size_t>(b)]);
      for (std::int64_t i = 0; i < row_numel; ++i) {
        const bool kept = random_word(row_key, static_cast<std::uint64_t>(i)) >= threshold;
        double& e = v[at(b, row_numel, i)];
        e = kept ? e / (1 - p) : 0;
      }
    }
    store(y, v);
  });
}

void ReferenceKernels::add(Stream& s, ConstTensorView a, ConstTensorView b, TensorView y) {
  expect_numel(b, a.numel(), "add: b like a");
  s.submit("add", {reads(a), reads(b), writes(y)}, [=] {
    Values sum = values(a);
    const Values bs = values(b);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += bs[i];
    store(y, sum);
  });
}

void ReferenceKernels::scale(Stream& s, ConstTensorView src, double factor, TensorView dst, Write mode) {
  s.submit("scale", {reads(src), writes(dst)}, [=] {
    Values v = values(src);
    for (double& e : v) e *= factor;
    store(dst, v, mode);
  });
}

void ReferenceKernels::scale_by(Stream& s, TensorView x, ConstTensorView factor) {
  s.submit("scale_by", {reads(factor), writes(x)}, [=] {
    const double f = scalar(factor);
    if (f == 1) return;
    Values v = values(x);
    for (double& e : v) e *= f;
    store(x, v);
  });
}

void ReferenceKernels::copy(Stream& s, ConstTensorView src, TensorView dst) {
  expect_numel(dst, src.numel(), "copy: equal numels");
  s.submit("copy", {reads(src), writes(dst)}, [=] {
    if (src.dtype != dst.dtype) {
      store(dst, values(src));
    } else if (src.bytes() > 0) {
      std::memcpy(dst.data, src.data, static_cast<std::size_t>(src.bytes()));
    }
  });
}

void ReferenceKernels::copy_blocks(Stream& s, ConstTensorView src, TensorView dst, std::span<const BlockCopy> blocks) {
  require(src.dtype == dst.dtype, "copy_blocks: equal dtypes, got {} and {}", dtype_name(src.dtype), dtype_name(dst.dtype));
  const std::int64_t bytes = dtype_bytes(src.dtype);
  s.submit("copy_blocks", {reads(src), writes(dst)}, [=, list = std::vector<BlockCopy>(blocks.begin(), blocks.end())] {
    for (const BlockCopy& b : list) {
      for (std::int64_t block = 0; block < b.count; ++block) {
        for (std::int64_t i = 0; i < b.numel * bytes; ++i) {
          static_cast<std::byte*>(dst.data)[(b.dst + block * b.dst_stride) * bytes + i] =
              static_cast<const std::byte*>(src.data)[(b.src + block * b.src_stride) * bytes + i];
        }
      }
    }
  });
}

void ReferenceKernels::fill(Stream& s, TensorView x, double value) {
  s.submit("fill", {writes(x)}, [=] {
    const auto set = [&](auto* p, auto e) {
      for (std::int64_t i = 0; i < x.numel(); ++i) p[i] = e;
    };
    switch (x.dtype) {
      case DType::i64:
        set(x.as<std::int64_t>(), static_cast<std::int64_t>(value));
        break;
      case DType::i32:
        set(x.as<std::int32_t>(), static_cast<std::int32_t>(value));
        break;
      case DType::u16:
        set(x.as<std::uint16_t>(), static_cast<std::uint16_t>(value));
        break;
      case DType::u8:
        set(x.as<std::uint8_t>(), static_cast<std::uint8_t>(value));
        break;
      default:
        store(x, Values(static_cast<std::size_t>(x.numel()), value));
    }
  });
}

void ReferenceKernels::fill_normal(Stream& s, TensorView x, const RandomKey& key, std::int64_t begin, double std) {
  s.submit("fill_normal", {writes(x)}, [=] {
    Values v(static_cast<std::size_t>(x.numel()));
    for (std::size_t i = 0; i < v.size(); ++i) {
      // A float product, as everywhere: the bits of an initial parameter are part of a run's identity.
      v[i] = static_cast<double>(static_cast<float>(std) * random_normal(key, static_cast<std::uint64_t>(begin) + i));
    }
    store(x, v);
  });
}

}  // namespace mica::reference
