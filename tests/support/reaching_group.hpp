// SPDX-License-Identifier: Apache-2.0
// Plays an MPI that takes a GPU's memory, over a group for memory of the host and with emulated GPUs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "mica/comm/process_group.hpp"

#include "cuda_emulation/memory.hpp"

namespace mica::testing {

/// What a ReachingGroup was given, over all groups made from one.
struct Reached {
  int moves_of_gpu_memory = 0;  ///< all-gathers and broadcasts of the emulated GPU's memory
  int others_of_gpu_memory = 0;
  int of_host_memory = 0;
};

/// The emulated GPU's memory can be touched by the host while a collective runs, and only then.
class ReachingGroup final : public ProcessGroup {
 public:
  ReachingGroup(std::unique_ptr<ProcessGroup> inner, Reached& reached)
      : ProcessGroup(inner->rank(), inner->num_ranks(), inner->name()), inner_(std::move(inner)), reached_(reached) {}
  [[nodiscard]] std::unique_ptr<ProcessGroup> duplicate(std::string name) override {
    return std::make_unique<ReachingGroup>(inner_->duplicate(std::move(name)), reached_);
  }
  [[nodiscard]] std::unique_ptr<ProcessGroup> split(int color, int key, std::string name) override {
    return std::make_unique<ReachingGroup>(inner_->split(color, key, std::move(name)), reached_);
  }

 private:
  void enqueue_all_gather(Stream& s, ConstTensorView shard, TensorView full) override {
    reach(s, full, true, [&] { inner_->all_gather(s, call().label.c_str(), shard, full); });
  }
  void enqueue_reduce_scatter(Stream& s, ConstTensorView full, TensorView shard) override {
    reach(s, full, false, [&] { inner_->reduce_scatter(s, call().label.c_str(), full, shard); });
  }
  void enqueue_all_reduce(Stream& s, TensorView data, ReduceOp op) override {
    reach(s, data, false, [&] { inner_->all_reduce(s, call().label.c_str(), data, op); });
  }
  void enqueue_all_to_all(Stream& s, ConstTensorView sent, TensorView received) override {
    reach(s, sent, false, [&] { inner_->all_to_all(s, call().label.c_str(), sent, received); });
  }
  void enqueue_broadcast(Stream& s, TensorView data, int root) override {
    reach(s, data, true, [&] { inner_->broadcast(s, call().label.c_str(), data, root); });
  }
  void enqueue_barrier(Stream& s) override { inner_->barrier(s, call().label.c_str()); }

  template <class Move>
  void reach(Stream& s, ConstTensorView view, bool only_moves, const Move& move) {
    const bool is_gpus = cuda_emulation::Memory::instance().find(view.data).place == cuda_emulation::Place::device;
    ++(!is_gpus ? reached_.of_host_memory : only_moves ? reached_.moves_of_gpu_memory : reached_.others_of_gpu_memory);
    if (!is_gpus) return move();
    const auto open = std::make_shared<std::optional<cuda_emulation::DeviceWork>>();
    s.submit("reach", {}, [open] { open->emplace(); });
    move();
    s.submit("leave", {}, [open] { open->reset(); });
  }

  std::unique_ptr<ProcessGroup> inner_;
  Reached& reached_;
};

}  // namespace mica::testing
