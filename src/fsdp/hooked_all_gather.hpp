// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "mica/fsdp/all_gather_hooks.hpp"
#include "mica/fsdp/device_mesh.hpp"
#include "mica/fsdp/per_parameter_layout.hpp"

namespace mica::fsdp {

/// The all-gather of a unit with hooks on some of its parameters: still one collective, of bytes. For each parameter in order a
/// rank sends the inputs from its hook, or without a hook its part in param_dtype, each array at a multiple of 64 bytes.
class HookedAllGather {
 public:
  /// `layout` outlives it.
  HookedAllGather(std::string unit_name, const PerParameterLayout& layout, DeviceMesh& device_mesh)
      : unit_name_(std::move(unit_name)), layout_(layout), device_mesh_(device_mesh) {}

  void set(std::size_t parameter, AllGatherHooks hooks) { hooks_[parameter] = std::move(hooks); }

  /// @param master [P] f32.  @param unsharded [U], written on the unshard stream.
  /// @throws Error on all ranks if the ranks' inputs differ in size in the first call of a dtype; on this rank if its sizes change
  ///         in a later call.
  void gather(ConstTensorView master, int shard_rank, TensorView unsharded);

 private:
  struct Part {  // one array of this rank
    std::size_t parameter = 0;
    Tensor tensor;
    std::int64_t offset = 0;  // bytes into what the rank sends
  };
  [[nodiscard]] std::vector<Part> make_parts(ConstTensorView master, int shard_rank, DType dtype);
  void check_agreement(const std::vector<Part>& parts, DType dtype);
  void write_plain(const Part& part, ConstTensorView gathered, std::int64_t bytes_per_rank, TensorView unsharded);
  void write_hooked(std::size_t parameter, const std::vector<Part>& parts, ConstTensorView gathered, std::int64_t bytes_per_rank,
                    TensorView unsharded);

  std::string unit_name_;
  const PerParameterLayout& layout_;
  DeviceMesh& device_mesh_;
  std::map<std::size_t, AllGatherHooks> hooks_;  // by parameter
  std::map<std::size_t, std::shared_ptr<const void>> metadata_;
  std::map<DType, std::vector<std::int64_t>> agreed_bytes_;  // by parameter
};

}  // namespace mica::fsdp
