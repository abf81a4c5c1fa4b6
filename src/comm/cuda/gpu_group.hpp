// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/comm/process_group.hpp"
#include "mica/device/cuda/check.hpp"

namespace mica::cuda {

/// Copies bytes on the stream, between any two places in GPU memory or page-locked host memory.
inline void enqueue_memcpy(Stream& s, const char* what, ConstTensorView src, TensorView dst) {
  s.submit(what, {reads(src), writes(dst)}, [src, dst, stream = native(s)] {
    check(cudaMemcpyAsync(dst.data, src.data, static_cast<std::size_t>(src.bytes()), cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  });
}

/// A group for GPU memory.
class GpuGroup : public ProcessGroup {
 public:
  /// See connect_groups().
  virtual void connect() {}
  /// See host_group_of().
  [[nodiscard]] virtual ProcessGroup& on_host() = 0;

 protected:
  /// @param host  the underlying group: gives ranks and name, and whether a group of one rank communicates
  explicit GpuGroup(const ProcessGroup& host) : ProcessGroup(host.rank(), host.num_ranks(), host.name(), !host.is_alone()) {
    publish(host.recorder().members());
  }

  void enqueue_copy(Stream& s, const char* what, ConstTensorView src, TensorView dst) const override { enqueue_memcpy(s, what, src, dst); }
};

}  // namespace mica::cuda
