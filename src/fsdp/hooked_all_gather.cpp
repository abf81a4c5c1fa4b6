// SPDX-License-Identifier: Apache-2.0
#include "hooked_all_gather.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "mica/comm/host_comm.hpp"
#include "mica/core/rounding.hpp"
#include "mica/fsdp/state_tensor.hpp"

#include "extent.hpp"

namespace mica::fsdp {
namespace {

constexpr std::int64_t kPartAlignment = 64;

std::int64_t aligned(std::int64_t bytes) { return round_up(bytes, kPartAlignment); }

TensorView as_bytes(const TensorView& view) { return {view.data, Shape{view.bytes()}, DType::u8}; }

}  // namespace

std::vector<HookedAllGather::Part> HookedAllGather::make_parts(ConstTensorView master, int shard_rank, DType dtype) {
  Stream& stream = *device_mesh_.streams().pre_unshard;
  Kernels& kernels = device_mesh_.kernels();
  std::vector<Part> parts;
  for (std::size_t i = 0; i < layout_.parameters().size(); ++i) {
    const PerParameterLayout::Cut& cut = layout_.cut(i);
    const ConstTensorView shard = master.slice(cut.offset, cut.numel);
    if (const auto hooks = hooks_.find(i); hooks != hooks_.end()) {
      AllGatherHooks::Inputs inputs = hooks->second.pre({.stream = stream,
                                                         .pool = device_mesh_.pool(),
                                                         .kernels = kernels,
                                                         .shard = shard.reshaped(with_rows(layout_.parameters()[i].shape, cut.chunk)),
                                                         .num_rows = layout_.num_indices(i, shard_rank),
                                                         .target = dtype});
      require(!inputs.tensors.empty(), "unit {}: the all-gather hook of parameter {} gives no tensor to send, expected one or more",
              unit_name_, layout_.parameters()[i].name);
      metadata_[i] = std::move(inputs.metadata);
      for (Tensor& tensor : inputs.tensors) parts.push_back({i, std::move(tensor)});
    } else {
      Tensor low(device_mesh_.pool().allocate(cut.numel * dtype_bytes(dtype), MemoryRole::low_precision_shard, stream), Shape{cut.numel},
                 dtype);
      kernels.copy(stream, shard, low);
      parts.push_back({i, std::move(low)});
    }
  }
  std::int64_t offset = 0;
  for (Part& part : parts) {
    part.offset = offset;
    offset += aligned(part.tensor.view().bytes());
  }
  return parts;
}

void HookedAllGather::check_agreement(const std::vector<Part>& parts, DType dtype) {
  // Ranks with other sizes would wait in the collective for bytes that never come.
  std::vector<std::int64_t> bytes(layout_.parameters().size(), 0);
  for (const Part& part : parts) bytes[part.parameter] += part.tensor.view().bytes();
  if (const auto agreed = agreed_bytes_.find(dtype); agreed != agreed_bytes_.end()) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      require(bytes[i] == agreed->second[i],
              "unit {}: the all-gather hook of parameter {} {} gives {} bytes, but gave {} in the first all-gather, "
              "for which the ranks have agreed on sizes: a hook must give the same number of bytes every time",
              unit_name_, layout_.parameters()[i].name, layout_.parameters()[i].shape.to_string(), bytes[i], agreed->second[i]);
    }
    return;
  }
  const std::vector<std::vector<std::int64_t>> of_ranks =
      gather_numbers(device_mesh_.agreement_group(), device_mesh_.compute(), "agreement", bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::vector<std::int64_t> seen;
    bool equal = true;
    for (const auto& of_rank : of_ranks) {
      seen.push_back(of_rank[i]);
      equal = equal && of_rank[i] == of_ranks[0][i];
    }
    require(equal,
            "unit {}: the all-gather hook of parameter {} {} gives {} bytes on ranks 0 to {}, expected the same on all: "
            "ranks with fewer rows pad to {} rows",
            unit_name_, layout_.parameters()[i].name, layout_.parameters()[i].shape.to_string(), fmt::join(seen, ", "), seen.size() - 1,
            layout_.cut(i).chunk);
  }
  agreed_bytes_[dtype] = std::move(bytes);
}

void HookedAllGather::gather(ConstTensorView master, int shard_rank, TensorView unsharded) {
  Stream& pre_stream = *device_mesh_.streams().pre_unshard;
  Stream& stream = *device_mesh_.streams().unshard;
  Pool& pool = device_mesh_.pool();
  const std::vector<Part> parts = make_parts(master, shard_rank, unsharded.dtype);
  check_agreement(parts, unsharded.dtype);

  const std::int64_t bytes_per_rank = parts.back().offset + aligned(parts.back().tensor.view().bytes());
  Buffer sent = pool.allocate(bytes_per_rank, MemoryRole::low_precision_shard, pre_stream);
  const TensorView sent_bytes{sent.data(), Shape{bytes_per_rank}, DType::u8};
  for (const Part& part : parts) {
    const BlockCopy block{.src = 0, .dst = part.offset, .numel = part.tensor.view().bytes()};
    device_mesh_.kernels().copy_blocks(pre_stream, as_bytes(part.tensor.view()), sent_bytes, {&block, 1});
  }
  stream.wait(pre_stream.record());
  const std::int64_t all_bytes = bytes_per_rank * layout_.shard_size();
  const Buffer received = pool.allocate(all_bytes, MemoryRole::communication, stream);
  const TensorView gathered{received.data(), Shape{all_bytes}, DType::u8};
  device_mesh_.unshard_group().all_gather(stream, unit_name_.c_str(), sent_bytes, gathered);
  sent.used_until(stream.record());

  for (const Part& part : parts) {
    if (!hooks_.contains(part.parameter)) write_plain(part, gathered, bytes_per_rank, unsharded);
  }
  for (const auto& [parameter, hooks] : hooks_) write_hooked(parameter, parts, gathered, bytes_per_rank, unsharded);
}

void HookedAllGather::write_plain(const Part& part, ConstTensorView gathered, std::int64_t bytes_per_rank, TensorView unsharded) {
  const PerParameterLayout::Cut& cut = layout_.cut(part.parameter);
  const std::int64_t element = dtype_bytes(unsharded.dtype);
  const std::int64_t outer = extent(layout_.parameters()[part.parameter].shape, 0, cut.dim);
  const std::int64_t block = cut.numel / std::max<std::int64_t>(outer, 1) * element;
  std::vector<BlockCopy> blocks;
  for (int r = 0; r < layout_.shard_size(); ++r) {
    blocks.push_back({.src = r * bytes_per_rank + part.offset,
                      .dst = layout_.begin_of(part.parameter) * element + r * block,
                      .numel = block,
                      .count = outer,
                      .src_stride = block,
                      .dst_stride = block * layout_.shard_size()});
  }
  device_mesh_.kernels().copy_blocks(*device_mesh_.streams().unshard, gathered, as_bytes(unsharded), blocks);
}

void HookedAllGather::write_hooked(std::size_t parameter, const std::vector<Part>& parts, ConstTensorView gathered,
                                   std::int64_t bytes_per_rank, TensorView unsharded) {
  Stream& stream = *device_mesh_.streams().unshard;
  const int shard_size = layout_.shard_size();
  std::vector<Tensor> held;
  AllGatherHooks::PostArgs args{.stream = stream,
                                .pool = device_mesh_.pool(),
                                .kernels = device_mesh_.kernels(),
                                .gathered = {},
                                .metadata = metadata_[parameter],
                                .shard_size = shard_size,
                                .parameter = {}};
  for (const Part& part : parts) {
    if (part.parameter != parameter) continue;
    const std::int64_t bytes = part.tensor.view().bytes();
    held.emplace_back(device_mesh_.pool().allocate(bytes * shard_size, MemoryRole::communication, stream),
                      Shape{part.tensor.numel() * shard_size}, part.tensor.dtype());
    const BlockCopy block{
        .src = part.offset, .dst = 0, .numel = bytes, .count = shard_size, .src_stride = bytes_per_rank, .dst_stride = bytes};
    device_mesh_.kernels().copy_blocks(stream, gathered, as_bytes(held.back().view()), {&block, 1});
    args.gathered.emplace_back(held.back().view());
  }
  const PerParameterLayout::Cut& cut = layout_.cut(parameter);
  args.parameter = unsharded.slice(layout_.begin_of(parameter), cut.numel * shard_size)
                       .reshaped(with_rows(layout_.parameters()[parameter].shape, cut.chunk * shard_size));
  hooks_.at(parameter).post(args);
}

}  // namespace mica::fsdp
