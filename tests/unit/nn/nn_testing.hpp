// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "mica/nn/init.hpp"
#include "mica/nn/module.hpp"
#include "mica/tensor/random.hpp"

namespace mica::nn::testing {

enum class KernelsKind : std::uint8_t { reference, cpu };

inline std::string to_string(KernelsKind kind) { return kind == KernelsKind::cpu ? "cpu" : "reference"; }

/// One rank without units: a pool that hands out NaNs, an inline stream, kernels, a context.
struct Rig {
  explicit Rig(KernelsKind kind = KernelsKind::cpu, StreamMode mode = StreamMode::inlined)
      : pool(make_cpu_pool()),
        stream(make_cpu_stream("compute", mode)),
        kernels(kind == KernelsKind::cpu ? make_cpu_kernels(*pool) : make_reference_kernels(*pool)),
        context{.compute = *stream, .pool = *pool, .kernels = *kernels} {
    pool->poison(true);
    context.seed = 5;
    context.step = 1;
  }

  /// Normal numbers, named.
  [[nodiscard]] Tensor normal(Shape shape, const std::string& name, bool needs_grad = true) {
    Tensor x = context.make(shape, DType::f32);
    kernels->fill_normal(*stream, x, RandomKey{.seed = 9, .name_hash = hash_name(name)}, 0, 1.0);
    x.needs_grad = needs_grad;
    return x;
  }
  /// i32 numbers in [0, bound), from a fixed stream.
  [[nodiscard]] Tensor tokens(Shape shape, std::int32_t bound, const std::string& name = "ids") {
    Tensor x = context.make(shape, DType::i32);
    stream->synchronize();  // the poison, and work of the memory's last owner
    const RandomKey key{.seed = 9, .name_hash = hash_name(name)};
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      x.view().as<std::int32_t>()[i] =
          static_cast<std::int32_t>(random_word(key, static_cast<std::uint64_t>(i)) % static_cast<std::uint32_t>(bound));
    }
    return x;
  }
  [[nodiscard]] Tensor scalar(double value) {
    Tensor x = context.make({1}, DType::f32);
    kernels->fill(*stream, x, value);
    return x;
  }
  void use_batch(std::int64_t rows, std::int64_t first_sequence = 0) {
    context.sequences.resize(static_cast<std::size_t>(rows));
    std::iota(context.sequences.begin(), context.sequences.end(), first_sequence);
  }
  [[nodiscard]] std::int64_t activation_bytes() const { return pool->stats().current_of(MemoryRole::activation); }

  std::unique_ptr<Pool> pool;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Kernels> kernels;
  Context context;
};

[[nodiscard]] inline std::vector<float> floats(Rig& rig, const ConstTensorView& view) {
  const Tensor copy = rig.context.make(view.shape, DType::f32, MemoryRole::workspace);
  if (view.numel() > 0) rig.kernels->copy(*rig.stream, view, copy);
  rig.stream->synchronize();
  const auto* p = copy.view().as<float>();
  return {p, p + view.numel()};
}

/// Largest |a - b| over the largest |b|; a tensor of the tests' models has no gradient that is zero as a whole.
[[nodiscard]] inline double relative_max_error(const std::vector<float>& a, const ConstTensorView& reference) {
  const auto* b = reference.as<float>();
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return error / largest;
}

/// ||a - b|| / ||b||
[[nodiscard]] inline double relative_norm_error(const std::vector<float>& a, const ConstTensorView& reference) {
  const auto* b = reference.as<float>();
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    error += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(error / norm);
}

struct NamedGradient {
  std::string name;
  std::vector<float> values;
  bool operator==(const NamedGradient&) const = default;
};

/// Gradients of all parameters that got one.
[[nodiscard]] inline std::vector<NamedGradient> gradients(Rig& rig, Module& module) {
  std::vector<NamedGradient> all;
  module.for_each_parameter([&](const std::string& name, Parameter& parameter) {
    if (parameter.grad_written) all.push_back({name, floats(rig, parameter.grad)});
  });
  return all;
}

}  // namespace mica::nn::testing
