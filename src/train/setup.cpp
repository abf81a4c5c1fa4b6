// SPDX-License-Identifier: Apache-2.0
#include "mica/train/setup.hpp"

#include <span>

#include <fmt/ranges.h>

#include "mica/comm/gpu_groups.hpp"
#include "mica/comm/host_comm.hpp"
#include "mica/comm/mpi_group.hpp"
#include "mica/fsdp/name_patterns.hpp"
#include "mica/nn/init.hpp"
#include "mica/plan/memory_plan.hpp"
#include "mica/tensor/cuda_kernels.hpp"
#include "mica/tensor/openmp.hpp"
#include "mica/train/model_config.hpp"
#include "mica/train/thread_count.hpp"

#include "device_choice.hpp"
#include "parse_number.hpp"

namespace mica::train {
namespace {

std::vector<fsdp::ShardDim> shard_dims(const Config& config) {
  std::vector<fsdp::ShardDim> rules;
  for (const std::string& item : config.fsdp.shard_dims) {
    const std::size_t colon = item.rfind(':');
    const std::optional<int> dim = colon == std::string::npos ? std::nullopt : parse_number<int>(item.substr(colon + 1));
    require<ConfigError>(dim.has_value(), "fsdp.shard_dims holds '{}', expected glob:dim", item);
    rules.push_back({item.substr(0, colon), *dim});
  }
  return rules;
}

}  // namespace

StreamMode stream_mode(const std::string& wanted, int threads) {
  if (wanted == "threaded") return StreamMode::threaded;
  if (wanted == "inline") return StreamMode::inlined;
  // On one core a second thread for memory traffic only costs switches.
  return threads > 1 ? StreamMode::threaded : StreamMode::inlined;
}

namespace {

/// Marks the blocks that fsdp.activation_checkpointing recomputes in backward.
void checkpoint_blocks(const Config& config, nn::Module& model) {
  const std::string& value = config.fsdp.activation_checkpointing;
  if (value == "none") return;
  std::vector<nn::Module*> blocks;
  model.for_each_module([&](const std::string&, nn::Module& each) {
    if (each.type_name() == block_type(config.model)) blocks.push_back(&each);
  });
  const std::int64_t count = value == "block" ? std::ssize(blocks) : parse_number<int>(value).value_or(0);
  require<ConfigError>(count >= 1 && count <= std::ssize(blocks),
                       "fsdp.activation_checkpointing is {}, but the model has {} blocks: expected none, block or a number from 1 to {}",
                       value, blocks.size(), blocks.size());
  for (nn::Module* block : std::span(blocks).first(static_cast<std::size_t>(count))) block->set_checkpointed(true);
}

}  // namespace

std::unique_ptr<nn::Module> make_module(const Config& config) {
  std::unique_ptr<nn::Module> module = make_model(config.model);
  checkpoint_blocks(config, *module);
  std::vector<std::string> cut;
  for (const fsdp::ShardDim& rule : shard_dims(config)) cut.push_back(rule.pattern);
  static_cast<void>(fsdp::parameters_matching(*module, cut, "fsdp.shard_dims"));
  for (nn::Parameter* frozen : fsdp::parameters_matching(*module, config.fsdp.freeze, "fsdp.freeze")) frozen->requires_grad = false;
  // Nothing reduces the gradients of what is ignored.
  for (nn::Parameter* ignored : fsdp::parameters_matching(*module, config.fsdp.ignore, "fsdp.ignore")) ignored->requires_grad = false;
  return module;
}

std::string block_type(const Config::Model& model) { return model.type + "_block"; }

ShardSize shard_size_of(const Config& config) {
  const std::string& text = config.mesh.shard_size;
  if (text == "auto") {
    const bool is_hybrid = fsdp::is_hybrid(fsdp::strategy_from_name(config.fsdp.strategy));
    return {.kind = is_hybrid ? ShardSize::Kind::node : ShardSize::Kind::world};
  }
  if (text == "world") return {.kind = ShardSize::Kind::world};
  if (text == "node") return {.kind = ShardSize::Kind::node};
  const int number = parse_number<int>(text).value_or(0);
  require<ConfigError>(number >= 1, "mesh.shard_size is '{}', expected auto, world, node or a whole number from 1", text);
  return {.kind = ShardSize::Kind::number, .number = number};
}

namespace {

/// The key may repeat what the strategy implies, but not contradict it.
void apply_reshard_after_forward(const std::string& value, fsdp::Options& options) {
  if (value == "auto") return;
  const bool reshards = fsdp::reshards_after_forward(options.strategy);
  require<ConfigError>((value == "false") != reshards,
                       "fsdp.reshard_after_forward = {} contradicts fsdp.strategy = {}, which {} parameters between forward and backward: "
                       "use {}, or remove reshard_after_forward",
                       value, fsdp::strategy_name(options.strategy), reshards ? "gives back" : "keeps",
                       reshards ? "shard_grad_op or hybrid_shard_zero2" : "full_shard or hybrid_shard");
  if (value == "true" || value == "false") return;
  const std::optional<int> ranks = parse_number<int>(value);
  require<ConfigError>(ranks.has_value(), "fsdp.reshard_after_forward is '{}', expected auto, true, false or a whole number from 1", value);
  options.reshard_after_forward_ranks = *ranks;
}

}  // namespace

fsdp::Options fsdp_options(const Config& config) {
  const Config::Fsdp& f = config.fsdp;
  fsdp::Options options;
  options.strategy = fsdp::strategy_from_name(f.strategy);
  options.sharding = f.sharding == "flat" ? fsdp::Sharding::flat : fsdp::Sharding::per_parameter;
  options.shard_dims = shard_dims(config);
  options.cpu_offload = f.cpu_offload == "parameters"  ? fsdp::CpuOffload::parameters
                        : f.cpu_offload == "gradients" ? fsdp::CpuOffload::gradients
                                                       : fsdp::CpuOffload::none;
  options.root = {.limit_all_gathers = f.limit_all_gathers,
                  .full_precision_in_eval = f.full_precision_in_eval,
                  .use_orig_params = f.use_orig_params,
                  .deterministic = config.train.deterministic};
  apply_reshard_after_forward(f.reshard_after_forward, options);
  options.backward_prefetch = f.backward_prefetch == "pre"    ? fsdp::BackwardPrefetch::pre
                              : f.backward_prefetch == "post" ? fsdp::BackwardPrefetch::post
                                                              : fsdp::BackwardPrefetch::none;
  options.forward_prefetch = f.forward_prefetch;
  options.sync_module_states = f.sync_module_states;
  options.mixed_precision.param_dtype = dtype_from_name(f.param_dtype);
  if (f.reduce_dtype != "auto") options.mixed_precision.reduce_dtype = dtype_from_name(f.reduce_dtype);
  if (f.buffer_dtype != "auto") options.mixed_precision.buffer_dtype = dtype_from_name(f.buffer_dtype);
  options.mixed_precision.keep_low_precision_grads = f.keep_low_precision_grads;
  if (f.gradient_compression != "none") options.reduction = &fsdp::compressing_reduction(dtype_from_name(f.gradient_compression));
  return options;
}

fsdp::WrapPolicy wrap_policy(const Config& config) {
  if (config.fsdp.wrap == "block") return fsdp::wrap_types({block_type(config.model)});
  if (config.fsdp.wrap == "size") return fsdp::wrap_min_numel(config.fsdp.min_numel);
  return fsdp::wrap_nothing();
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Config::Optim& o, fsdp::Root& root) {
  const optim::MomentPrecision precision = optim::moment_precision_from_name(o.state_dtype);
  if (o.type == "sgd") {
    return optim::make_sgd(root, {.momentum = o.momentum, .weight_decay = o.weight_decay, .nesterov = o.nesterov, .precision = precision});
  }
  return optim::make_adamw(root, {.beta1 = o.beta1,
                                  .beta2 = o.beta2,
                                  .eps = o.eps,
                                  .weight_decay = o.weight_decay,
                                  .decoupled = o.type == "adamw",
                                  .precision = precision});
}

std::unique_ptr<optim::GradScaler> make_scaler(const Config& config, fsdp::Root& root) {
  const fsdp::Options options = fsdp_options(config);
  if (options.param_dtype() != DType::f16 && options.reduce_dtype() != DType::f16) return nullptr;
  return std::make_unique<optim::GradScaler>(
      root, optim::GradScalerOptions{.init_scale = config.optim.loss_scale, .growth_interval = config.optim.loss_scale_interval});
}

optim::LrSchedule make_schedule(const Config& config) {
  return optim::LrSchedule({.shape = optim::lr_shape_from_name(config.optim.schedule),
                            .lr = config.optim.lr,
                            .min_lr = config.optim.min_lr,
                            .warmup_steps = config.optim.warmup_steps,
                            .total_steps = config.train.steps});
}

bool may_accumulate(const Config& config) { return !config.optim.in_backward || config.train.gradient_sync == "no_sync"; }

void require_accumulates(const Config& config, const data::BatchPlan& plan) {
  require<ConfigError>(plan.accumulation == 1 || may_accumulate(config),
                       "optim.in_backward = true makes an optimizer step at each reduction, and each of the {} micro-batches of a step "
                       "would be reduced: set train.gradient_sync = no_sync",
                       plan.accumulation);
}

bool saves_at_intervals(const Config& config) { return config.checkpoint.interval > 0 || config.checkpoint.interval_minutes > 0; }

bool saves_in_background(const Config& config) { return config.checkpoint.async && saves_at_intervals(config); }

void require_trains(const Config& config, const nn::Module& module) {
  bool is_trained = false;
  const_cast<nn::Module&>(module).for_each_parameter(
      [&](const std::string&, nn::Parameter& p) { is_trained = is_trained || p.requires_grad; });
  require<ConfigError>(is_trained, "fsdp.freeze = '{}' and fsdp.ignore = '{}' leave no parameter to train: name fewer of them",
                       fmt::join(config.fsdp.freeze, ","), fmt::join(config.fsdp.ignore, ","));
}

/// Storage and initial values of the parameters that no unit holds.
std::vector<Buffer> make_ignored(const fsdp::Root& root, DType dtype, const nn::Context& context) {
  std::vector<Buffer> buffers;
  for (const fsdp::UnitParameter& p : root.ignored_parameters()) {
    const Shape& shape = p.parameter->shape;
    buffers.push_back(context.pool.allocate(shape.numel() * dtype_bytes(dtype), MemoryRole::unsharded_param, context.compute));
    p.parameter->data = {buffers.back().data(), shape, dtype};
    nn::fill_initial(context.kernels, context.compute, *p.parameter, p.full_name, context.seed, 0, p.parameter->data);
  }
  return buffers;
}

namespace {

std::string backend_name(DeviceChoice::Backend backend) {
  switch (backend) {
    case DeviceChoice::Backend::mpi:
      return "mpi";
    case DeviceChoice::Backend::shared:
      return "shared";
    case DeviceChoice::Backend::nccl:
      return "nccl";
    case DeviceChoice::Backend::staged:
      return "staged";
  }
  return {};
}

GroupBackend group_backend(DeviceChoice::Backend backend, const Config::Mesh& mesh, const Device& device) {
  if (backend == DeviceChoice::Backend::mpi || backend == DeviceChoice::Backend::shared) return {};
  if (backend == DeviceChoice::Backend::staged) {
    return [&pinned = *device.pinned_pool](std::unique_ptr<ProcessGroup> host) {
      return make_staged_group(std::move(host), pinned, {.host_takes_gpu_memory = mpi::Session::is_cuda_aware()});
    };
  }
  NcclOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(mesh.timeout * 1e3));
  if (!mesh.register_buffers) options.register_from_bytes = kRegisterNothing;
  return [options](std::unique_ptr<ProcessGroup> host) { return make_nccl_group(std::move(host), options); };
}

/// @throws ConfigError if streams are to be threaded, and MPI does not allow it. @collective
StreamMode cpu_stream_mode(const Config& config, const mpi::Session& session, const mpi::Communicator& world, int num_threads,
                           const Logger& logger) {
  const StreamMode wanted = stream_mode(config.mesh.streams, num_threads);
  const StreamMode possible = comm_stream_mode(session, wanted);
  const bool is_told = world.all_max(possible != wanted ? 1 : 0) != 0 && world.rank() == 0;
  const std::string why = fmt::format("this MPI ({}) does not grant MPI_THREAD_MULTIPLE", mpi::Session::library_version());
  require<ConfigError>(
      possible == wanted || config.mesh.streams != "threaded",
      "mesh.streams = threaded communicates from threads of its own, and {}: set mesh.streams = auto, or use an MPI that does", why);
  if (is_told) logger.warn("{}, so nothing is communicated while a rank computes (mesh.streams = inline)", why);
  return possible;
}

}  // namespace

Device Device::make(const Config& config, const mpi::Session& session, const mpi::Communicator& world, const Logger& logger) {
  Device device;
  const ThreadCount threads = choose_threads(world, static_cast<int>(config.mesh.threads));
  if (!threads.warning.empty()) logger.warn("{}", threads.warning);
  // What a single rank may fail at comes before the collectives of the mesh.
  const std::vector<RankPlace> places = find_places(world);
  const DeviceChoice choice = choose_device(config, session, world, places);
  const bool on_gpu = choice.gpu.has_value();
  device.gpu = choice.gpu;
  device.ranks_on_gpu = choice.ranks_on_gpu;
  device.backend = backend_name(choice.backend);
  device.why_not_shared = choice.why_not_shared;
  device.registers_buffers = config.mesh.register_buffers;
  const auto comm = make_mpi_comm(world);
  comm->agree([&] {
    device.num_threads = threads.threads;
    set_openmp_threads(device.num_threads);
    check_openmp_threads();
    device.pool = on_gpu ? make_cuda_pool() : make_cpu_pool();
    if (on_gpu) device.host_pool = make_cpu_pool();
    if (on_gpu) device.pinned_pool = make_pinned_pool();
    const CudaKernelsOptions options{.allow_tf32 = config.train.tf32,
                                     .reproducible = config.train.reproducible,
                                     .fuse_epilogues = !config.train.deterministic,
                                     .f32_logits = config.train.f32_logits};
    device.make_kernels = [on_gpu, options](Pool& pool) { return on_gpu ? make_cuda_kernels(pool, options) : make_cpu_kernels(pool); };
    device.kernels = device.make_kernels(*device.pool);
  });
  comm->agree([&] {  // a shard size that does not fit is refused by all ranks alike
    const bool shares_memory = choice.backend == DeviceChoice::Backend::shared;
    device.mesh =
        std::make_unique<Mesh>(make_mpi_mesh(world, shard_size_of(config), on_gpu ? *device.host_pool : *device.pool,
                                             {.shares_memory = shares_memory}, places, group_backend(choice.backend, config.mesh, device)));
    if (shares_memory) device.mesh->require_shards_inside_nodes("mesh.backend = shared");
  });
  if (!config.log.trace.empty()) device.tracer = std::make_unique<Tracer>(world.rank());
  const StreamMode mode = on_gpu ? StreamMode::threaded : cpu_stream_mode(config, session, world, device.num_threads, logger);
  if (!on_gpu && mode == StreamMode::threaded) device.waits = std::make_unique<Stopwatch>();
  fsdp::Streams streams = fsdp::Streams::make(mode, [on_gpu, &device](const std::string& name, StreamMode stream_mode) {
    // Communication and packing are short, and other ranks wait for them. So they go before queued matrix products.
    const GpuPriority priority = name == "compute" ? GpuPriority::normal : GpuPriority::high;
    std::unique_ptr<Stream> stream;
    if (on_gpu) {
      stream = make_cuda_stream(name, priority);
    } else {
      stream = make_cpu_stream(name, stream_mode);
      if (name == "compute" && device.waits) stream = time_waits(std::move(stream), *device.waits);
    }
    return device.tracer ? device.tracer->wrap(std::move(stream)) : std::move(stream);
  });
  device.device_mesh = std::make_unique<fsdp::DeviceMesh>(*device.mesh, *device.pool, *device.kernels, std::move(streams), logger);
  return device;
}

namespace {

std::string backend_text(const std::string& backend, bool registers) {
  if (backend == "nccl") {
    return fmt::format("NCCL {}, large buffers {}", nccl_version_text(),
                       !registers            ? "not registered (mesh.register_buffers=false)"
                       : nccl_can_register() ? "registered"
                                             : "not registered (needs NCCL 2.19 or later)");
  }
  return mpi::Session::is_cuda_aware() ? "staged over MPI, all-gathers directly from GPU memory (this MPI is CUDA-aware)"
                                       : "staged over MPI through page-locked memory (this MPI is not CUDA-aware)";
}

}  // namespace

std::string Device::describe() const {
  if (!gpu) {
    return fmt::format("CPU, {} OpenMP thread{} per rank{}", num_threads, num_threads == 1 ? "" : "s",
                       backend == "shared" ? ", MPI and shared memory" : "");
  }
  return fmt::format("{} ({}, compute capability {}.{}, {}{}), CUDA {}, {}{}", gpu->name, gpu->pci_bus_id, gpu->compute_major,
                     gpu->compute_minor, plan::format_bytes(gpu->memory_bytes),
                     ranks_on_gpu > 1 ? fmt::format(", shared by {} ranks", ranks_on_gpu) : "", cuda_version_text(),
                     backend_text(backend, registers_buffers),
                     gpu_pool_kind() == GpuPoolKind::plain ? ", a cudaMalloc for every buffer (MICA_GPU_POOL=plain, slow)" : "");
}

std::optional<double> Device::exposed_communication_ms() const {
  if (gpu) return std::nullopt;
  if (!waits) return device_mesh->communication_ms();                                                       // inline streams hide nothing
  return waits->ms() + device_mesh->shard_norm_group().busy_ms() + device_mesh->metrics_group().busy_ms();  // on the compute stream
}

nn::Recompute recompute_policy(const Config& config, const Device& device) {
  const std::string& wanted = config.fsdp.recompute;
  // On a CPU matrix products take almost all the time; on a GPU memory traffic takes much of it.
  const bool keeps = wanted == "none" || (wanted == "auto" && device.gpu);
  return keeps ? nn::Recompute::none : nn::Recompute::cheap;
}

ShardedModel ShardedModel::make(const Config& config, const Device& device) {
  fsdp::DeviceMesh& device_mesh = *device.device_mesh;
  std::unique_ptr<nn::Module> module = make_module(config);
  require_trains(config, *module);
  fsdp::Options options = fsdp_options(config);
  options.ignored_parameters = fsdp::parameters_matching(*module, config.fsdp.ignore, "fsdp.ignore");
  fsdp::Root& root = fsdp::auto_wrap(*module, device_mesh, options, wrap_policy(config));
  nn::Context context{.compute = device_mesh.compute(), .pool = device_mesh.pool(), .kernels = device_mesh.kernels()};
  context.seed = config.run.seed;
  context.loss_in_backward = true;
  context.recompute = recompute_policy(config, device);
  std::vector<Buffer> ignored = make_ignored(root, options.param_dtype(), context);
  std::unique_ptr<optim::Optimizer> optimizer = make_optimizer(config.optim, root);
  auto in_backward = config.optim.in_backward ? std::make_unique<optim::OptimizerInBackward>(*optimizer) : nullptr;
  std::unique_ptr<optim::GradScaler> scaler = make_scaler(config, root);
  return {std::move(module), &root, std::move(context), std::move(optimizer), std::move(scaler), std::move(in_backward),
          std::move(ignored)};
}

Datasets Datasets::open(const Config& config) {
  const auto open_list = [&](const std::vector<std::string>& paths, bool is_shuffled) {
    return data::TokenDataset::open(
        {.paths = paths, .seq_len = config.train.seq_len, .vocab_size = config.model.vocab_size, .is_shuffled = is_shuffled});
  };
  const bool is_shuffled = data::data_order_from_name(config.data.order) == data::DataOrder::shuffled;
  Datasets datasets{open_list(config.data.train, is_shuffled), std::nullopt};
  if (!config.data.val.empty()) {
    datasets.val = open_list(config.data.val, false);
    data::check_one_tokenizer(datasets.train, *datasets.val);
  }
  return datasets;
}

}  // namespace mica::train
