// SPDX-License-Identifier: Apache-2.0
#include "loaded_model.hpp"

#include "mica/train/model_config.hpp"
#include "mica/train/model_source.hpp"
#include "mica/train/resume_rules.hpp"

namespace mica::generate {
namespace {

/// Storage for parameters that no unit holds.
std::vector<Buffer> make_storage(const fsdp::Root& root, DType dtype, const nn::Context& context) {
  std::vector<Buffer> buffers;
  for (const fsdp::UnitParameter& p : root.ignored_parameters()) {
    const Shape& shape = p.parameter->shape;
    buffers.push_back(context.pool.allocate(shape.numel() * dtype_bytes(dtype), MemoryRole::unsharded_param, context.compute));
    p.parameter->data = {buffers.back().data(), shape, dtype};
  }
  return buffers;
}

}  // namespace

train::Config config_of(const HostComm& comm, const std::string& folder, const std::string& dtype, std::int64_t threads) {
  train::Config config;
  config.model.init_from = folder;
  config.mesh.device = "cpu";
  config.mesh.threads = threads;
  // A pass is a chain of small tasks, each waiting for the one before. On one rank a second thread would only add switches.
  if (comm.num_ranks() == 1) {
    config.mesh.streams = "inline";
    config.fsdp.strategy = "no_shard";
  }
  config.fsdp.param_dtype = dtype;
  config.train.seq_len = 1;
  config.train.micro_batch = 1;
  train::read_model_keys(comm, folder, config);
  comm.agree([&] { train::check_model(config); });
  return config;
}

LoadedModel::LoadedModel(App& app, const train::Config& config, const Logger& logger)
    : device_(train::Device::make(config, app.session, app.world, logger)),
      module_(train::make_module(config)),
      context_{.compute = device_.device_mesh->compute(), .pool = device_.device_mesh->pool(), .kernels = device_.device_mesh->kernels()} {
  fsdp::Options options = train::fsdp_options(config);
  const bool is_alone = app.comm.num_ranks() == 1;
  module_->for_each_parameter([&](const std::string&, nn::Parameter& parameter) {
    parameter.requires_grad = false;
    // A unit would keep an fp32 master in addition to the parameters in the wanted dtype.
    if (is_alone) options.ignored_parameters.push_back(&parameter);
  });
  fsdp::Root& root = fsdp::auto_wrap(*module_, *device_.device_mesh, options, is_alone ? fsdp::wrap_nothing() : train::wrap_policy(config));
  whole_ = make_storage(root, options.param_dtype(), context_);
  root.initialize({.seed = config.run.seed, .zeros = true});
  report_ = checkpoint::init_from(config.model.init_from, train::model_description(config), root, app.comm);
}

}  // namespace mica::generate
