// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "mica/comm/process_group.hpp"

namespace mica::testing {

/// What an injected failure throws.
class InjectedFailure : public Error {
 public:
  using Error::Error;
};

/// Lets the k-th collective fail that a rank enqueues while armed, over all groups made from one failing group.
class FailurePlan {
 public:
  explicit FailurePlan(std::int64_t failing_index) : failing_index_(failing_index) {}
  void arm() { armed_ = true; }
  void disarm() { armed_ = false; }
  /// Collectives seen while armed.
  [[nodiscard]] std::int64_t num_seen() const { return num_seen_; }
  [[nodiscard]] bool fails_now() { return armed_ && num_seen_++ == failing_index_; }

 private:
  std::int64_t failing_index_;
  std::int64_t num_seen_ = 0;
  bool armed_ = false;
};

/// Passes everything on to another group, but for the collective that the plan names: that one throws on its stream.
/// Every rank has a plan of its own with the same index, so the ranks fail at the same place.
class FailingGroup final : public ProcessGroup {
 public:
  FailingGroup(std::unique_ptr<ProcessGroup> inner, FailurePlan& plan)
      : ProcessGroup(inner->rank(), inner->num_ranks(), inner->name()), inner_(std::move(inner)), plan_(plan) {}

  [[nodiscard]] std::unique_ptr<ProcessGroup> duplicate(std::string name) override {
    return std::make_unique<FailingGroup>(inner_->duplicate(std::move(name)), plan_);
  }
  [[nodiscard]] std::unique_ptr<ProcessGroup> split(int color, int key, std::string name) override {
    return std::make_unique<FailingGroup>(inner_->split(color, key, std::move(name)), plan_);
  }
  [[nodiscard]] bool shares_memory() const override { return inner_->shares_memory(); }
  [[nodiscard]] SharedParts allocate_parts(Pool& pool, std::int64_t numel, DType dtype, MemoryRole role, Stream& home) override {
    return inner_->allocate_parts(pool, numel, dtype, role, home);
  }

 private:
  void enqueue_all_gather(Stream& s, ConstTensorView shard, TensorView full) override {
    if (!fail(s)) inner_->all_gather(s, call().label.c_str(), shard, full);
  }
  void enqueue_reduce_scatter(Stream& s, ConstTensorView full, TensorView shard) override {
    if (!fail(s)) inner_->reduce_scatter(s, call().label.c_str(), full, shard);
  }
  void enqueue_all_reduce(Stream& s, TensorView data, ReduceOp op) override {
    if (!fail(s)) inner_->all_reduce(s, call().label.c_str(), data, op);
  }
  void enqueue_all_to_all(Stream& s, ConstTensorView sent, TensorView received) override {
    if (!fail(s)) inner_->all_to_all(s, call().label.c_str(), sent, received);
  }
  void enqueue_broadcast(Stream& s, TensorView data, int root) override {
    if (!fail(s)) inner_->broadcast(s, call().label.c_str(), data, root);
  }
  void enqueue_barrier(Stream& s) override {
    if (!fail(s)) inner_->barrier(s, call().label.c_str());
  }

  bool fail(Stream& s) {
    if (!plan_.fails_now()) return false;
    s.submit("injected failure", {}, [] { throw InjectedFailure("injected failure"); });
    return true;
  }

  std::unique_ptr<ProcessGroup> inner_;
  FailurePlan& plan_;
};

}  // namespace mica::testing
