// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "mica/comm/mesh.hpp"
#include "mica/data/batch_plan.hpp"
#include "mica/data/sampler.hpp"
#include "mica/data/token_dataset.hpp"
#include "mica/device/gpu.hpp"
#include "mica/device/stopwatch.hpp"
#include "mica/device/tracer.hpp"
#include "mica/fsdp/wrap_policy.hpp"
#include "mica/mpi/communicator.hpp"
#include "mica/mpi/session.hpp"
#include "mica/nn/module.hpp"
#include "mica/optim/grad_scaler.hpp"
#include "mica/optim/lr_schedule.hpp"
#include "mica/optim/optimizer.hpp"
#include "mica/optim/optimizer_in_backward.hpp"
#include "mica/train/config.hpp"

namespace mica::train {

/// The config's model, with its activation checkpointing, without storage.
[[nodiscard]] std::unique_ptr<nn::Module> make_module(const Config& config);

/// mesh.streams on a CPU. @param threads  that compute
[[nodiscard]] StreamMode stream_mode(const std::string& wanted, int threads);

/// Module type that wrap=block and activation_checkpointing act on.
[[nodiscard]] std::string block_type(const Config::Model& model);

/// mesh.shard_size; auto: node for hybrid strategies, as in PyTorch, and world for the others. @throws ConfigError
[[nodiscard]] ShardSize shard_size_of(const Config& config);

[[nodiscard]] fsdp::Options fsdp_options(const Config& config);
[[nodiscard]] fsdp::WrapPolicy wrap_policy(const Config& config);
[[nodiscard]] std::unique_ptr<optim::Optimizer> make_optimizer(const Config::Optim& optim, fsdp::Root& root);
/// Null unless parameters or reductions are in fp16.
[[nodiscard]] std::unique_ptr<optim::GradScaler> make_scaler(const Config& config, fsdp::Root& root);
[[nodiscard]] optim::LrSchedule make_schedule(const Config& config);

/// Whether a step may have several micro-batches.
[[nodiscard]] bool may_accumulate(const Config& config);
/// @throws ConfigError if the plan has several micro-batches per step, and may not
void require_accumulates(const Config& config, const data::BatchPlan& plan);

/// Whether checkpoints are made between the first step and the last, and not only where a run ends.
[[nodiscard]] bool saves_at_intervals(const Config& config);
/// Whether checkpoints are written from a copy of the model and the optimizer state: those between the first step and the last.
[[nodiscard]] bool saves_in_background(const Config& config);

/// What one rank computes on: everything from the memory pool up to the mesh. Members are destroyed in reverse order.
struct Device {
  std::optional<GpuInfo> gpu;  ///< none: the CPU
  int ranks_on_gpu = 1;
  std::string backend;            ///< of the mesh: "mpi", "shared", "nccl" or "staged"
  std::string why_not_shared;     ///< what kept mesh.backend = auto from "shared", if that was room in /dev/shm
  bool registers_buffers = true;  ///< mesh.register_buffers
  std::unique_ptr<Pool> pool;
  std::unique_ptr<Pool> host_pool;    ///< with a GPU: staging memory of MPI groups
  std::unique_ptr<Pool> pinned_pool;  ///< with a GPU: staging memory of the `staged` backend
  /// Makes kernels like `kernels`, for the plan.
  std::function<std::unique_ptr<Kernels>(Pool&)> make_kernels;
  std::unique_ptr<Kernels> kernels;
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<Tracer> tracer;    ///< of the mesh's streams; null without log.trace
  std::unique_ptr<Stopwatch> waits;  ///< times how long a threaded compute stream waits; else null
  std::unique_ptr<fsdp::DeviceMesh> device_mesh;
  int num_threads = 1;

  [[nodiscard]] std::string describe() const;
  /// Milliseconds so far in which this rank's compute stream was idle, waiting for communication. Nothing on a GPU, where only a trace
  /// shows it.
  [[nodiscard]] std::optional<double> exposed_communication_ms() const;

  /// @throws ConfigError on all ranks: no such device, a shard size that does not fit. @collective
  static Device make(const Config& config, const mpi::Session& session, const mpi::Communicator& world, const Logger& logger);
};

/// fsdp.recompute. `auto` depends on the kind of device only, which is the same on all ranks and in every launch. It does not depend on
/// free memory, because on a GPU results may differ in bits between policies ([Note: recomputed outputs]).
[[nodiscard]] nn::Recompute recompute_policy(const Config& config, const Device& device);

/// The model of the config, sharded on the device, with its optimizer. Without storage until initialize() or a checkpoint.
struct ShardedModel {
  std::unique_ptr<nn::Module> module;
  fsdp::Root* root = nullptr;
  nn::Context context;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::GradScaler> scaler;                ///< null unless something is in fp16
  std::unique_ptr<optim::OptimizerInBackward> in_backward;  ///< null unless optim.in_backward
  std::vector<Buffer> ignored;                              ///< storage of parameters that fsdp.ignore keeps out of units

  /// @param device  outlives it.
  static ShardedModel make(const Config& config, const Device& device);
};

/// The token files of data.train and, if set, data.val.
struct Datasets {
  data::TokenDataset train;
  std::optional<data::TokenDataset> val;

  /// @throws ConfigError
  static Datasets open(const Config& config);
};

}  // namespace mica::train
