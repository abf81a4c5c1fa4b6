// SPDX-License-Identifier: Apache-2.0
#include "memory_check.hpp"

#include "mica/comm/host_comm.hpp"
#include "mica/device/gpu.hpp"
#include "mica/train/memory_limit.hpp"

namespace mica::train {
namespace {

/// What makes activations smaller.
std::string memory_keys(const Config& config, const Device& device) {
  const bool keeps = recompute_policy(config, device) == nn::Recompute::none;
  return std::string(keeps ? "fsdp.recompute=cheap or " : "or ") + "fsdp.activation_checkpointing=block";
}

void check_gpu_memory(const mpi::Communicator& world, const Config& config, const Device& device, const StartPlan& start) {
  const std::int64_t needed = start.memory.peak * device.ranks_on_gpu;
  make_mpi_comm(world)->agree([&] {  // CUDA, its libraries and NCCL have theirs by now
    const std::int64_t left = free_gpu_memory() + device.pool->stats().reserved;
    require<ConfigError>(
        needed <= left,
        "this run needs {} of a GPU's memory a rank{}, but {} has {} left of {}: take more GPUs, a smaller model, "
        "train.micro_batch or train.seq_len, {}",
        plan::format_bytes(start.memory.peak),
        device.ranks_on_gpu > 1 ? fmt::format(", {} with {} ranks on one", plan::format_bytes(needed), device.ranks_on_gpu) : "",
        device.gpu->name, plan::format_bytes(left), plan::format_bytes(device.gpu->memory_bytes), memory_keys(config, device));
  });
}

}  // namespace

void check_memory(const mpi::Communicator& world, const Config& config, const Device& device, const data::BatchPlan& batch,
                  const StartPlan& start) {
  if (device.gpu) return check_gpu_memory(world, config, device, start);
  const mpi::Communicator node = world.split_node();
  const std::int64_t batches = 2 * batch.accumulation * batch.micro_batch * config.train.seq_len * 2 * dtype_bytes(DType::i32);
  const std::int64_t mine = start.memory.peak + batches;
  const MemoryShare share = tightest_limit(node, mine, memory_limits());
  make_mpi_comm(world)->agree([&] {
    require<ConfigError>(share.needed <= share.limit.bytes,
                         "this run needs {} of memory a rank, {} for {} ranks of a node, but {} is {}: take more nodes, a higher "
                         "limit (Slurm: --mem), a smaller model, train.micro_batch or train.seq_len, {}",
                         plan::format_bytes(mine), plan::format_bytes(share.needed), share.num_ranks, share.limit.name,
                         plan::format_bytes(share.limit.bytes), memory_keys(config, device));
  });
}

}  // namespace mica::train
