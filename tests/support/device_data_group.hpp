// SPDX-License-Identifier: Apache-2.0
// Lets checks written for memory of the host drive a group whose tensors are a GPU's.
#pragma once

#include <memory>
#include <span>
#include <string>

#include <cuda_runtime_api.h>

#include "mica/comm/process_group.hpp"
#include "mica/device/cuda/check.hpp"

namespace mica::testing {

/// Brings what a collective takes into the GPU's memory and what it leaves back. `inner` and `pool` outlive it.
class DeviceDataGroup final : public ProcessGroup {
 public:
  DeviceDataGroup(ProcessGroup& inner, Pool& pool)
      : ProcessGroup(inner.rank(), inner.num_ranks(), inner.name() + "/device", true), inner_(inner), pool_(pool) {}
  std::unique_ptr<ProcessGroup> duplicate(std::string) override { throw Error("not needed here"); }
  std::unique_ptr<ProcessGroup> split(int, int, std::string) override { throw Error("not needed here"); }

 protected:
  void enqueue_all_gather(Stream& s, ConstTensorView shard, TensorView full) override {
    const Copy out(*this, s, full);
    // In place: the shard is a part of the whole.
    const auto at = static_cast<const std::byte*>(shard.data) - static_cast<const std::byte*>(full.data);
    if (at >= 0 && at < full.bytes()) {
      inner_.all_gather(s, call().label.c_str(), out.view.slice(at / dtype_bytes(full.dtype), shard.numel()), out.view);
    } else {
      const Copy in(*this, s, shard);
      inner_.all_gather(s, call().label.c_str(), in.view, out.view);
    }
    move(s, out.view, full);
  }
  void enqueue_reduce_scatter(Stream& s, ConstTensorView full, TensorView shard) override {
    const Copy in(*this, s, full), out(*this, s, shard);
    const auto at = static_cast<const std::byte*>(shard.data) - static_cast<const std::byte*>(full.data);
    const bool in_place = at >= 0 && at < full.bytes();
    const TensorView own = in_place ? in.view.slice(at / dtype_bytes(full.dtype), shard.numel()) : out.view;
    inner_.reduce_scatter(s, call().label.c_str(), in.view, own);
    move(s, own, shard);
  }
  void enqueue_all_reduce(Stream& s, TensorView data, ReduceOp op) override {
    const Copy copy(*this, s, data);
    inner_.all_reduce(s, call().label.c_str(), copy.view, op);
    move(s, copy.view, data);
  }
  void enqueue_all_to_all(Stream& s, ConstTensorView sent, TensorView received) override {
    const Copy in(*this, s, sent), out(*this, s, received);
    inner_.all_to_all(s, call().label.c_str(), in.view, out.view);
    move(s, out.view, received);
  }
  void enqueue_broadcast(Stream& s, TensorView data, int root) override {
    const Copy copy(*this, s, data);
    inner_.broadcast(s, call().label.c_str(), copy.view, root);
    move(s, copy.view, data);
  }
  void enqueue_barrier(Stream& s) override { inner_.barrier(s, call().label.c_str()); }

 private:
  struct Copy {
    Copy(DeviceDataGroup& group, Stream& s, ConstTensorView host)
        : buffer(group.pool_.allocate(host.bytes(), MemoryRole::communication, s)), view{buffer.data(), host.shape, host.dtype} {
      move(s, host, view);
    }
    Buffer buffer;
    TensorView view;
  };
  /// Only once the stream is done: a copy between a GPU and memory that is not page-locked holds a lock of the driver until then, and the
  /// other ranks, threads of this process, may need that lock before the stream can proceed.
  static void move(Stream& s, ConstTensorView from, TensorView to) {
    s.submit("move", {reads(from), writes(to)}, [=, stream = cuda::native(s)] {
      cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      cuda::check(cudaMemcpyAsync(to.data, from.data, static_cast<std::size_t>(from.bytes()), cudaMemcpyDefault, stream),
                  "cudaMemcpyAsync");
    });
  }

  ProcessGroup& inner_;
  Pool& pool_;
};

}  // namespace mica::testing
