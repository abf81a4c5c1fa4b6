// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>

#include "../loss_arguments.hpp"
#include "../loss_math.hpp"
#include "cpu_kernels.hpp"
#include "loops.hpp"

namespace mica::cpu {

using namespace arguments;  // NOLINT(google-build-using-namespace)

namespace {

/// Elements widened to f32 and summed at a time: fixed, so that sums do not depend on the number of threads.
constexpr std::int64_t kBlockNumel = 2048;

/// A block of outputs and their targets in f32.
struct Block {
  std::array<float, kBlockNumel> x, targets;
  std::int64_t begin, numel;

  Block(ConstTensorView all_x, ConstTensorView all_targets, std::int64_t block)
      : begin(block * kBlockNumel), numel(std::min(kBlockNumel, all_x.numel() - begin)) {
    loops().convert(all_x.slice(begin, numel).data, all_x.dtype, x.data(), DType::f32, 0, numel);
    loops().convert(all_targets.slice(begin, numel).data, all_targets.dtype, targets.data(), DType::f32, 0, numel);
  }
};

/// Rows of logits with a target each.
struct ClassRows {
  ConstTensorView logits;
  const std::int32_t* targets;
  std::int32_t ignored;
  ClassDims dims;

  /// @throws Error naming the first target that is neither a class nor ignored. @returns how many are not ignored.
  [[nodiscard]] std::int64_t count() const {
    std::int64_t counted = 0;
    for (std::int64_t row = 0; row < dims.rows; ++row) {
      if (targets[row] == ignored) continue;
      require(targets[row] >= 0 && targets[row] < dims.classes,
              "cross_entropy: target {} in row {} is not one of the {} classes [0, {}) and not {} (ignored): give the model an "
              "output for every class, or correct the targets",
              targets[row], row, dims.classes, dims.classes, ignored);
      ++counted;
    }
    return counted;
  }
  /// body(row, the row's logits in f32), in parallel. @param space  a row of f32 for each thread, unless logits are f32
  template <class Body>
  void for_each(float* space, const Body& body) const {
    parallel_ranges_by_thread(dims.rows, row_grain(dims.classes), [&](std::int64_t begin, std::int64_t end, int thread) {
      for (std::int64_t row = begin; row < end; ++row) {
        const void* own = logits.slice(row * dims.classes, dims.classes).data;
        if (logits.dtype == DType::f32) {
          body(row, static_cast<const float*>(own));
          continue;
        }
        float* widened = space + thread * dims.classes;
        loops().convert(own, logits.dtype, widened, DType::f32, 0, dims.classes);
        body(row, widened);
      }
    });
  }
  [[nodiscard]] std::int64_t space_numel() const {
    return logits.dtype == DType::f32 ? 0 : threads_for(dims.rows, row_grain(dims.classes)) * dims.classes;
  }
};

}  // namespace

void CpuKernels::element_loss(Stream& s, ElementLoss f, ConstTensorView x, ConstTensorView targets, TensorView loss) {
  const std::int64_t n = check_element_loss(x, targets, loss);
  const std::int64_t blocks = divide_up(n, kBlockNumel);
  const Buffer space = scratch(s, blocks * static_cast<std::int64_t>(sizeof(double)));
  enqueue(s, "element_loss", {reads(x), reads(targets), mica::writes(loss), writes(space)}, [=, sums = static_cast<double*>(space.data())] {
    parallel_ranges(blocks, kElementGrain / kBlockNumel, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        const Block block(x, targets, b);
        sums[b] = 0;
        for (std::size_t i = 0; i < static_cast<std::size_t>(block.numel); ++i) {
          sums[b] += element::loss(f, static_cast<double>(block.x[i]), static_cast<double>(block.targets[i]));
        }
      }
    });
    double sum = 0;
    for (std::int64_t b = 0; b < blocks; ++b) sum += sums[b];
    *loss.as<float>() = static_cast<float>(sum / static_cast<double>(n));
  });
}

void CpuKernels::element_loss_backward(Stream& s, ElementLoss f, ConstTensorView x, ConstTensorView targets, ConstTensorView dloss,
                                       TensorView dx) {
  const std::int64_t n = check_element_loss_backward(x, targets, dloss, dx);
  enqueue(s, "element_loss_backward", {reads(x), reads(targets), reads(dloss), mica::writes(dx)}, [=] {
    const double factor = static_cast<double>(*dloss.as<float>()) / static_cast<double>(n);
    parallel_ranges(divide_up(n, kBlockNumel), kElementGrain / kBlockNumel, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        Block block(x, targets, b);
        for (std::size_t i = 0; i < static_cast<std::size_t>(block.numel); ++i) {
          block.x[i] = static_cast<float>(
              factor * element::loss_derivative(f, static_cast<double>(block.x[i]), static_cast<double>(block.targets[i])));
        }
        loops().convert(block.x.data(), DType::f32, dx.slice(block.begin, block.numel).data, dx.dtype, 0, block.numel);
      }
    });
  });
}

void CpuKernels::cross_entropy(Stream& s, ConstTensorView logits, ConstTensorView targets, std::int32_t ignored, TensorView loss) {
  const ClassDims dims = check_cross_entropy(logits, targets, loss);
  const ClassRows rows{logits, targets.as<std::int32_t>(), ignored, dims};
  const Buffer space = scratch(s, (dims.rows + rows.space_numel()) * 4);
  enqueue(s, "cross_entropy", {reads(logits), reads(targets), mica::writes(loss), writes(space)},
          [=, losses = static_cast<float*>(space.data())] {
            const std::int64_t count = rows.count();
            rows.for_each(losses + dims.rows, [&](std::int64_t row, const float* scores) {
              const std::int32_t target = rows.targets[row];
              losses[row] = target == ignored ? 0 : loops().cross_entropy_row(scores, dims.classes, target, nullptr);
            });
            double sum = 0;  // in the rows' order: the same bits on any number of threads
            for (std::int64_t row = 0; row < dims.rows; ++row) sum += static_cast<double>(losses[row]);
            *loss.as<float>() = static_cast<float>(sum / static_cast<double>(count));
          });
}

void CpuKernels::cross_entropy_backward(Stream& s, ConstTensorView logits, ConstTensorView targets, std::int32_t ignored,
                                        ConstTensorView dloss, TensorView dlogits) {
  const ClassDims dims = check_cross_entropy_backward(logits, targets, dloss, dlogits);
  const ClassRows rows{logits, targets.as<std::int32_t>(), ignored, dims};
  const Buffer space = scratch(s, rows.space_numel() * 4);
  enqueue(s, "cross_entropy_backward", {reads(logits), reads(targets), reads(dloss), mica::writes(dlogits), writes(space)},
          [=, widened = static_cast<float*>(space.data())] {
            const auto factor = static_cast<float>(static_cast<double>(*dloss.as<float>()) / static_cast<double>(rows.count()));
            rows.for_each(widened, [&](std::int64_t row, const float* scores) {
              const TensorView to = dlogits.slice(row * dims.classes, dims.classes);
              const std::int32_t target = rows.targets[row];
              if (target == ignored) {
                std::memset(to.data, 0, static_cast<std::size_t>(to.bytes()));
                return;
              }
              RowSoftmax softmax;
              loops().cross_entropy_row(scores, dims.classes, target, &softmax);
              loops().cross_entropy_backward_row(scores, dims.classes, target, softmax, factor, to.data, to.dtype);
            });
          });
}

}  // namespace mica::cpu
