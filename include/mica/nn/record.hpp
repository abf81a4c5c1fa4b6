// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "mica/tensor/tensor.hpp"

namespace mica::nn {

/// Base of what a module keeps in a Record besides tensors.
struct RecordExtra {
  virtual ~RecordExtra() = default;
};

/// The state that random numbers were drawn from, so that a later backward or recomputation draws the same ones.
struct RandomPoint {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::vector<std::int64_t> sequences;
  bool training = true;
};

/// Another path's gradient of the same input (a residual connection): a backward that can do so adds its dx to `sum` in place,
/// sets `used` and returns `sum`; others ignore it. Lives on the stack of the parent's backward.
struct GradientSum {
  Tensor sum;
  bool used = false;

  /// Whether a dx computed from `dy` may be added in place: same dtype, and dy is not the sum itself.
  [[nodiscard]] bool accepts(const Tensor& dy) const { return sum.dtype() == dy.dtype() && sum.view().data != dy.view().data; }
};

/// What one forward leaves for its backward. Move-only; the caller of forward owns it. [Note: records]
/// A null Record* means that no gradient is wanted: nothing is saved. A module may have several Records at once
/// (several forwards before a backward). Backward consumes the Record, unless keep() was called.
class Record {
 public:
  Record() = default;
  Record(Record&&) noexcept = default;
  Record& operator=(Record&&) noexcept = default;

  /// Tensors saved by the module itself, in its own order.
  std::vector<Tensor> saved;
  std::unique_ptr<RecordExtra> extra;

  /// saved[i] for its last use in backward: removed from the Record, so that dropping the result frees the memory, unless the
  /// Record is kept.
  [[nodiscard]] Tensor take(std::size_t i) { return keep_ ? saved.at(i) : std::exchange(saved.at(i), Tensor()); }

  /// Which inputs of the forward wanted a gradient; set by whoever runs the forward.
  std::vector<bool> input_needs_grad;
  void note_inputs(const std::vector<Tensor>& xs) {
    for (const Tensor& x : xs) input_needs_grad.push_back(x.needs_grad);
  }
  [[nodiscard]] bool needs_dx(std::size_t i) const { return i < input_needs_grad.size() && input_needs_grad[i]; }

  /// A Record for the next child's forward; children are numbered in call order.
  [[nodiscard]] Record* add_child() {
    children_.push_back(std::make_unique<Record>());
    children_.back()->keep_ = keep_;
    return children_.back().get();
  }
  [[nodiscard]] Record& child(std::size_t i) { return *children_.at(i); }

  /// Allows several backwards with this Record and its children after one forward.
  void keep(bool on = true) {
    keep_ = on;
    for (auto& child : children_) child->keep(on);
  }
  [[nodiscard]] bool is_kept() const { return keep_; }

  /// Set by the unit that owns the module: destroying it lowers the unit's count of outstanding Records.
  std::shared_ptr<void> unit_ticket;
  /// Inputs and random numbers of a checkpointed module, whose forward runs again in backward.
  std::vector<Tensor> checkpoint_inputs;
  RandomPoint checkpoint_random;
  /// For the gradient of input 0; set by the parent just before the backward, null otherwise.
  GradientSum* dx_sum = nullptr;

  /// Drops everything saved; backward has run.
  void clear() { *this = Record(); }

 private:
  std::vector<std::unique_ptr<Record>> children_;
  bool keep_ = false;
};

/// The Record to pass to a child's forward: null when the parent has none.
[[nodiscard]] inline Record* child_record(Record* record) { return record ? record->add_child() : nullptr; }

}  // namespace mica::nn
