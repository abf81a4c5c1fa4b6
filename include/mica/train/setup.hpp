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

/// Module type that wrap=block and activation_checkpointing=block act on.
[[nodiscard]] std::string block_type(const Config::Model& model);

/// mesh.shard_size; auto: node for hybrid strategies, as in PyTorch, and world for the others. @throws ConfigError
[[nodiscard]] ShardSize shard_size_of(const Config& config);

[[nodiscard]] fsdp::Options fsdp_options(const Config& config);
[[nodiscard]] fsdp::WrapPolicy wrap_policy(const Config& config);
[[nodiscard]] std::unique_ptr<optim::Optimizer> make_optimizer(const Config::Optim& optim, fsdp::Root& root);
/// Null unless parameters or reductions are fp16.
[[nodiscard]] std::unique_ptr<optim::GradScaler> make_scaler(const Config& config, fsdp::Root& root);
[[nodiscard]] optim::LrSchedule make_schedule(const Config& config);

/// What one rank computes on: everything from the memory pool up to the mesh. Members are destroyed in reverse order.
struct Device {
  std::optional<GpuInfo> gpu;  ///< none: the CPU
  int ranks_on_gpu = 1;
  std::string backend;            ///< of the mesh: "mpi", "shared", "nccl" or "staged"
  bool registers_buffers = true;  ///< mesh.register_buffers
  std::unique_ptr<Pool> pool;
  std::unique_ptr<Pool> host_pool;    ///< with a GPU: staging memory of MPI groups
  std::unique_ptr<Pool> pinned_pool;  ///< with a GPU: staging memory of the `staged` backend
  /// Makes kernels like `kernels`, for the plan.
  std::function<std::unique_ptr<Kernels>(Pool&)> make_kernels;
  std::unique_ptr<Kernels> kernels;
  std::unique_ptr<Mesh> mesh;
  std::unique_ptr<Tracer> tracer;    ///< of the mesh's streams; null without log.trace
  std::unique_ptr<Stopwatch> waits;  ///< of a threaded compute stream for the others; null: it is another kind
  std::unique_ptr<fsdp::DeviceMesh> device_mesh;
  int num_threads = 1;

  /// @throws ConfigError: no such device, a shard size that does not fit.  @collective
  [[nodiscard]] std::string describe() const;
  /// Milliseconds that this rank's computing has stood still for communication so far. Nothing on a GPU: only a trace tells there.
  [[nodiscard]] std::optional<double> exposed_communication_ms() const;

  static Device make(const Config& config, const mpi::Session& session, const mpi::Communicator& world, const Logger& logger);
};

/// fsdp.recompute. `auto` depends only on the kind of device, which is the same on all ranks and in every launch, and not on
/// free memory, which is not: on a GPU, bits may depend on the policy ([Note: recomputed outputs]).
[[nodiscard]] nn::Recompute recompute_policy(const Config& config, const Device& device);

/// The model of the config, sharded on the device, with its optimizer. Without storage until initialize() or a checkpoint.
struct ShardedModel {
  std::unique_ptr<nn::Module> module;
  fsdp::Root* root = nullptr;
  nn::Context context;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::GradScaler> scaler;                ///< null unless something is fp16
  std::unique_ptr<optim::OptimizerInBackward> in_backward;  ///< null unless optim.in_backward
  std::vector<Buffer> ignored;                              ///< storage of parameters that fsdp.ignore keeps out of units

  /// @param device  outlives it.
  static ShardedModel make(const Config& config, const Device& device);
};

/// Opens data.train (and data.val, if there is any) for the model. @throws ConfigError
struct Datasets {
  data::TokenDataset train;
  std::optional<data::TokenDataset> val;

  static Datasets open(const Config& config);
};

}  // namespace mica::train
