// SPDX-License-Identifier: Apache-2.0
#include "save_job.hpp"

#include <cmath>

#include "mica/checkpoint/folder.hpp"
#include "mica/core/version.hpp"
#include "mica/fsdp/layout_by_name.hpp"
#include "mica/fsdp/unit_tree.hpp"
#include "mica/tensor/host_math.hpp"

#include "whole_tensors.hpp"

namespace mica::checkpoint {
namespace {

/// Requires the same step on all ranks, which otherwise would write into different folders. @returns rank 0's run id.
std::string agree_on_identity(const SaveState& state, const HostComm& comm) {
  const std::vector<std::string> all = comm.all_or_throw([&] {
    require(state.root->state() == fsdp::TrainingState::idle, "a checkpoint is saved while the root is {}: save between passes",
            fsdp::training_state_name(state.root->state()));
    state.root->device_mesh().compute().synchronize();  // wait for the optimizer's last writes
    return fmt::format("{} {}", state.step, state.run_id);
  });
  const std::string& first = all.front();
  const auto step_text = [](const std::string& identity) { return identity.substr(0, identity.find(' ')); };
  for (std::size_t r = 0; r < all.size(); ++r) {
    require<DesyncError>(step_text(all[r]) == step_text(first), "rank {} saves step {}, but rank 0 step {}", r, step_text(all[r]),
                         step_text(first));
  }
  const std::string run_id = first.substr(first.find(' ') + 1);
  require(!run_id.empty() && run_id.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz") == std::string::npos,
          "run_id is '{}', expected lower-case letters and digits", run_id);
  return run_id;
}

Manifest header_of(const SaveState& state) {
  const fsdp::Root& root = *state.root;
  const Mesh& mesh = root.device_mesh().mesh();
  Manifest m;
  m.mica_version = full_version();
  m.step = state.step;
  m.parent = state.parent;
  m.began_from = state.began_from;
  m.tokens = state.tokens;
  m.global_batch = state.global_batch;
  m.sequences = state.sequences;
  m.data = state.data;
  m.seed = state.seed;
  m.world_size = mesh.world_size();
  m.shard_size = mesh.shard_size();
  m.replicas = mesh.replicas();
  m.strategy = fsdp::strategy_name(root.units().front()->options().strategy);
  m.kernels = root.device_mesh().kernels().description();
  m.omp_threads = state.omp_threads;
  if (state.optimizer != nullptr) {
    m.optimizer = state.optimizer->name();
    m.optimizer_steps = state.optimizer->num_steps();
    m.state_kinds = state.optimizer->state_kinds();
    m.state_dtypes = state.optimizer->state_dtypes();
    m.parameter_steps = state.optimizer->parameter_steps();
  }
  for (const auto& [name, value] : state.scalars) {
    require(std::isfinite(value), "the scalar {} is {}, which a manifest cannot hold: save finite numbers", name, value);
  }
  m.scalars = state.scalars;
  if (state.val_loss && std::isfinite(*state.val_loss)) {
    m.val_loss = state.val_loss;
    m.val_data = state.val_data;
  }
  m.diverged = state.diverged;
  m.model = state.model;
  m.config = state.config;
  return m;
}

/// Lists the datasets of this rank's shard file.
void add_sources(const SaveState& state, SaveJob& job) {
  const std::vector<const fsdp::UnitStorage*> storages = unit_storages(*state.root);
  const std::vector<optim::StateShard> states = state.optimizer != nullptr ? state.optimizer->state() : std::vector<optim::StateShard>{};
  const Pool& pool = state.root->device_mesh().pool();
  const auto add = [&](std::size_t unit, std::string kind, ConstTensorView data) {
    ShardSource source{static_cast<std::int64_t>(unit), std::move(kind), data.numel(), data.dtype,
                       static_cast<const std::byte*>(data.data)};
    if (pool.device_of(data.data) != DeviceKind::cpu) source.device = &pool;
    job.contents.sources.push_back(std::move(source));
  };
  for (std::size_t u = 0; u < storages.size(); ++u) {
    const fsdp::UnitStorage& storage = *storages[u];
    require(storage.is_initialized(), "unit {} is saved before its parameters have values", storage.name());
    // Units that are not sharded are equal on all ranks: shard_rank 0 writes them.
    if (storage.shard_size() == 1 && job.contents.shard_rank != 0) continue;
    add(u, std::string(kMasterKind), storage.master());
    for (const optim::StateShard& shard : states) {
      if (shard.storage == &storage) add(u, shard.kind, shard.data);
    }
  }
  if (job.contents.shard_rank != 0) return;
  const std::vector<optim::IgnoredState> ignored_states =
      state.optimizer != nullptr ? state.optimizer->ignored_state() : std::vector<optim::IgnoredState>{};
  std::size_t unit = storages.size();
  for (const WholeTensor& tensor : whole_tensors(*state.root)) {
    ConstTensorView data = tensor.data;
    if (data.dtype != tensor.dtype) {
      const fsdp::StateTensor as_is = fsdp::StateTensor::on_host(tensor.shape, data.dtype);
      pool.copy(as_is.view().data, data.data, data.bytes());
      const fsdp::StateTensor& copy = job.converted.emplace_back(fsdp::StateTensor::on_host(tensor.shape, tensor.dtype));
      convert(as_is.view().data, data.dtype, copy.view().data, tensor.dtype, data.numel());
      data = copy.view();
    }
    add(unit, std::string(kMasterKind), data);
    for (const optim::IgnoredState& each : ignored_states) {
      if (each.parameter == tensor.name) add(unit, each.kind, each.data);
    }
    ++unit;
  }
}

}  // namespace

bool writes_shard_file(const MeshGeometry& geometry, int mesh_rank) {
  return geometry.replica_rank(mesh_rank) == geometry.shard_rank(mesh_rank) % geometry.replicas;
}

std::vector<const fsdp::UnitStorage*> unit_storages(const fsdp::Root& root) {
  std::vector<const fsdp::UnitStorage*> storages;
  for (const fsdp::Unit* unit : root.units()) {
    if (unit->storage() != nullptr) storages.push_back(unit->storage());
  }
  return storages;
}

std::vector<SavedUnit> saved_units(const fsdp::Root& root) {
  fsdp::require_one_mesh(root, "a checkpoint");
  std::vector<SavedUnit> units;
  for (const fsdp::Unit* unit : root.units()) {
    if (unit->storage() == nullptr) continue;
    const std::shared_ptr<const fsdp::ShardLayout> borrowed(std::shared_ptr<void>(), &unit->storage()->layout());
    units.push_back({unit->name(), borrowed});
  }
  for (const WholeTensor& tensor : whole_tensors(root)) {
    const std::vector<fsdp::ParameterSpec> only{{tensor.name, tensor.shape}};
    units.push_back({tensor.name, fsdp::make_layout("flat", only, 1), tensor.role, tensor.dtype});
  }
  return units;
}

std::vector<UnitEntry> unit_entries(const std::vector<SavedUnit>& units) {
  std::vector<UnitEntry> entries;
  for (const SavedUnit& unit : units) entries.push_back(entry_of(unit));
  return entries;
}

SaveJob describe_save(const std::string& run_folder, const SaveState& state, int shard_rank) {
  SaveJob job;
  job.folder = checkpoints_folder(run_folder) + "/" + step_folder_name(state.step);
  job.header = header_of(state);
  job.header.run_id = state.run_id;
  job.tokenizer = state.tokenizer;
  job.contents = {state.run_id, state.step, shard_rank, saved_units(*state.root), {}, {}};
  job.header.units = unit_entries(job.contents.units);
  add_sources(state, job);
  return job;
}

SaveJob make_save_job(const std::string& run_folder, const SaveState& state, const HostComm& comm) {
  const Mesh& mesh = state.root->device_mesh().mesh();
  SaveState agreed = state;
  agreed.run_id = agree_on_identity(state, comm);
  SaveJob job;
  comm.agree([&] {
    job = describe_save(run_folder, agreed, mesh.shard_rank());
    job.writes_shard = writes_shard_file(mesh.geometry(), mesh.rank());
  });
  return job;
}

}  // namespace mica::checkpoint
