// SPDX-License-Identifier: Apache-2.0
#include "memory_check.hpp"

#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <sys/statvfs.h>

#include "mica/comm/host_comm.hpp"
#include "mica/comm/shared_parts.hpp"
#include "mica/device/gpu.hpp"
#include "mica/train/memory_limit.hpp"

namespace mica::train {
namespace {

/// Keys that would reduce memory, as the end of a list.
std::string memory_keys(const Config& config, const Device& device) {
  std::vector<std::string> keys;
  if (config.fsdp.activation_checkpointing != "block") {
    if (recompute_policy(config, device) == nn::Recompute::none) keys.emplace_back("fsdp.recompute=cheap");
    keys.emplace_back("fsdp.activation_checkpointing=block");
  }
  if (config.fsdp.strategy == "no_shard" && device.mesh->world_size() > 1) keys.emplace_back("fsdp.strategy=full_shard");
  if (config.optim.type == "adamw" && config.optim.state_dtype == "fp32" && !device.gpu) keys.emplace_back("optim.state_dtype=int8");
  return keys.empty() ? "" : fmt::format(", or {}", fmt::join(keys, " or "));
}

void check_gpu_memory(const mpi::Communicator& world, const Config& config, const Device& device, const StartPlan& start) {
  const std::int64_t needed = start.memory.peak * device.ranks_on_gpu;
  make_mpi_comm(world)->agree([&] {  // CUDA, its libraries and NCCL have allocated theirs by now
    const std::int64_t left = free_gpu_memory() + device.pool->stats().reserved;
    require<ConfigError>(
        needed <= left,
        "this run needs {} of GPU memory per rank{}, but {} has {} left of {}: use more GPUs, a smaller model, train.micro_batch or "
        "train.seq_len{}",
        plan::format_bytes(start.memory.peak),
        device.ranks_on_gpu > 1 ? fmt::format(", {} with {} ranks on one", plan::format_bytes(needed), device.ranks_on_gpu) : "",
        device.gpu->name, plan::format_bytes(left), plan::format_bytes(device.gpu->memory_bytes), memory_keys(config, device));
  });
}

/// For what is in /dev/shm.
void check_shared_memory(const mpi::Communicator& world, const mpi::Communicator& node, const StartPlan& start) {
  const std::int64_t needed = node.all_sum(start.shared_bytes);
  make_mpi_comm(world)->agree([&] {
    struct statvfs place {};
    if (statvfs("/dev/shm", &place) != 0 || place.f_blocks == 0) return;  // no limit; an error is reported on use
    const auto unit = static_cast<std::int64_t>(place.f_frsize);
    const auto left = static_cast<std::int64_t>(place.f_bavail) * unit, all = static_cast<std::int64_t>(place.f_blocks) * unit;
    require<ConfigError>(
        needed <= left,
        "mesh.backend = shared keeps {} ({} bytes) of parameters and gradients in memory that the {} ranks of a node share, but of the {} "
        "of /dev/shm {} ({} bytes) are free: make it larger (a container has an option for it, often --shm-size), or "
        "set mesh.backend=mpi",
        plan::format_bytes(needed), needed, node.num_ranks(), plan::format_bytes(all), plan::format_bytes(left), left);
  });
}

}  // namespace

void check_memory(const mpi::Communicator& world, const Config& config, const Device& device, const data::BatchPlan& batch,
                  const StartPlan& start) {
  if (device.gpu) return check_gpu_memory(world, config, device, start);
  const mpi::Communicator node = world.split_node();
  const std::int64_t batches = 2 * batch.accumulation * batch.micro_batch * config.train.seq_len * 2 * dtype_bytes(DType::i32);
  const std::int64_t tables = page_table_bytes(start.shared_bytes * device.mesh->shard_size());  // each rank maps those of its group
  const std::int64_t mine = start.memory.peak + start.offload_peak + batches + tables;
  const MemoryShare share = tightest_limit(node, mine, memory_limits());
  make_mpi_comm(world)->agree([&] {
    require<ConfigError>(share.needed <= share.limit.bytes,
                         "this run needs {} of memory per rank, {} for {} ranks of a node, but {} is {}: use more nodes, a higher limit "
                         "(Slurm: --mem), a smaller model, train.micro_batch or train.seq_len{}{}",
                         plan::format_bytes(mine), plan::format_bytes(share.needed), share.num_ranks, share.limit.name,
                         plan::format_bytes(share.limit.bytes), memory_keys(config, device),
                         tables == 0 ? ""
                                     : fmt::format(", or mesh.backend=mpi: {} of a rank's memory are page tables of what it shares",
                                                   plan::format_bytes(tables)));
  });
  if (device.backend == "shared") check_shared_memory(world, node, start);
}

}  // namespace mica::train
