// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/state_dict_files.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "mica/checkpoint/folder.hpp"
#include "mica/fsdp/layout_by_name.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/tensor/host_math.hpp"

#include "parameter_reader.hpp"
#include "save_job.hpp"

namespace mica::checkpoint {
namespace {

// --- saving ----------------------------------------------------------------------------------------------------------

/// A rank's tensors by kind and parameter, all fp32.
using Tensors = std::map<std::string, fsdp::StateDict>;

/// Elements [offset, offset + numel) of a shard lie at `data`.
struct Placed {
  std::int64_t offset, numel;
  const float* data;
};

/// The places of a rank's tensors in its shard. Parameters without state have none.
std::vector<Placed> placed_in(const fsdp::ShardLayout& layout, int shard_rank, const fsdp::StateDict& tensors) {
  std::vector<Placed> placed;
  for (const fsdp::Piece& piece : layout.pieces(shard_rank)) {
    const auto found = tensors.find(layout.parameters()[piece.parameter].name);
    if (found == tensors.end()) continue;
    invariant(piece.num_runs() == 1, "tensors are cut along dim 0");
    const fsdp::StateTensor& tensor = found->second;
    const std::int64_t begin = tensor.row_begin() * fsdp::row_numel_of(tensor.global_shape());
    invariant(piece.begin == begin && piece.numel() == tensor.numel(), "a state dict holds the rows of its rank");
    placed.push_back({piece.offset, piece.numel(), tensor.view().as<float>()});
  }
  return placed;
}

/// Elements [begin, begin + numel) of a shard, from its placed tensors; padding is zero.
void fill(const std::vector<Placed>& placed, std::int64_t begin, std::int64_t numel, std::byte* to) {
  std::memset(to, 0, static_cast<std::size_t>(numel) * sizeof(float));
  for (const Placed& each : placed) {
    const std::int64_t from = std::max(begin, each.offset);
    const std::int64_t until = std::min(begin + numel, each.offset + each.numel);
    if (from >= until) continue;
    std::memcpy(to + (from - begin) * 4, each.data + (from - each.offset), static_cast<std::size_t>(until - from) * 4);
  }
}

/// The unit, with every parameter cut along rows.
SavedUnit cut_along_rows(const SavedUnit& unit, bool is_full) {
  const int shard_size = is_full ? 1 : unit.layout->shard_size();
  std::string name = "flat";
  for (std::size_t i = 0; shard_size > 1 && i < unit.layout->parameters().size(); ++i) {
    name = i == 0 ? "per_parameter 0" : name + ",0";
  }
  return {unit.name, fsdp::make_layout(name, unit.layout->parameters(), shard_size)};
}

Tensors gather(const SaveState& state, fsdp::StateDictKind kind) {
  const bool is_full = kind == fsdp::StateDictKind::full;
  fsdp::StateDictSettings settings = fsdp::StateDictSettings::of(kind);
  if (is_full) settings.model = fsdp::FullStateDictConfig{.offload_to_cpu = true, .rank0_only = true};
  if (!is_full) settings.model = fsdp::ShardedStateDictConfig{.offload_to_cpu = true};
  nn::Module& module = state.root->units().front()->module();
  Tensors tensors;
  {
    const fsdp::StateDictSettingsScope scope(module, settings);
    tensors[std::string(kMasterKind)] = fsdp::state_dict(module);
  }
  if (state.optimizer == nullptr) return tensors;
  const optim::OptimStateDict optimizer =
      is_full ? optim::full_optim_state_dict(*state.optimizer) : optim::sharded_optim_state_dict(*state.optimizer);
  for (const auto& [key, parameter] : optimizer.state) {
    for (const auto& [name, tensor] : parameter.tensors) tensors[name].emplace(std::get<std::string>(key), tensor);
  }
  return tensors;
}

/// A source of optimizer state, as state dicts have it.
ShardSource as_f32(ShardSource source) {
  if (source.dtype == DType::f32) return source;
  source.read = [memory = source.memory, from = source.dtype](std::int64_t begin, std::int64_t numel, std::byte* to) {
    convert(memory + begin * dtype_bytes(from), from, to, DType::f32, numel);
  };
  source.memory = nullptr;
  source.dtype = DType::f32;
  return source;
}

/// Replaces a job's units and sources by gathered tensors that are cut along rows. Whole tensors of shard rank 0 stay.
void replace_units(SaveJob& job, const SaveState& state, fsdp::StateDictKind kind) {
  const bool is_full = kind == fsdp::StateDictKind::full;
  const auto tensors = std::make_shared<const Tensors>(gather(state, kind));
  const Mesh& mesh = state.root->device_mesh().mesh();
  if (is_full) {
    job.header.world_size = job.header.shard_size = job.header.replicas = 1;
    job.writes_shard = mesh.rank() == 0;
  }
  job.header.state_dtypes.clear();  // state dicts are fp32
  const auto stays = [is_full](const SavedUnit& unit) {
    return unit.role != UnitRole::unit || (!is_full && unit.layout->shard_size() == 1);
  };
  for (SavedUnit& unit : job.contents.units) {
    if (!stays(unit)) unit = cut_along_rows(unit, is_full);
  }
  job.header.units = unit_entries(job.contents.units);
  std::vector<ShardSource> sources;
  const int shard_rank = job.contents.shard_rank;
  for (const ShardSource& source : job.contents.sources) {
    const SavedUnit& unit = job.contents.units[static_cast<std::size_t>(source.unit)];
    if (stays(unit)) {
      sources.push_back(source.kind == kMasterKind ? source : as_f32(source));
      continue;
    }
    const auto of_kind = tensors->find(source.kind);
    const fsdp::StateDict none;
    auto placed =
        placed_in(*unit.layout, unit.layout->shard_size() == 1 ? 0 : shard_rank, of_kind == tensors->end() ? none : of_kind->second);
    sources.push_back(
        {source.unit, source.kind, unit.layout->shard_numel(), DType::f32, nullptr,
         [tensors, placed = std::move(placed)](std::int64_t begin, std::int64_t numel, std::byte* to) { fill(placed, begin, numel, to); }});
  }
  job.contents.sources = std::move(sources);
}

// --- reading ---------------------------------------------------------------------------------------------------------

fsdp::StateTensor read_rows(ParameterReader& reader, const fsdp::ParameterSpec& p, const std::string& kind, const ReadPart& part) {
  require(part.num_ranks >= 1 && part.rank >= 0 && part.rank < part.num_ranks, "rank {} of {} reads a state dict", part.rank,
          part.num_ranks);
  const fsdp::Rows rows = fsdp::rows_of_part(p.shape, part.rank, part.num_ranks);
  const DType dtype = kind == kMasterKind ? reader.dtype(p.name, kind) : DType::f32;
  fsdp::StateTensor tensor = fsdp::StateTensor::on_host(fsdp::with_rows(p.shape, rows.end - rows.begin), dtype);
  const std::int64_t begin = rows.begin * fsdp::row_numel_of(p.shape);
  if (tensor.numel() > 0 && kind == kMasterKind) {
    reader.read(p.name, kind, begin, tensor.numel(), tensor.view().data);
  } else if (tensor.numel() > 0) {
    reader.read_f32(p.name, kind, begin, tensor.numel(), tensor.view().as<float>());
  }
  tensor.set_part_of(p.shape, rows.begin);
  return tensor;
}

}  // namespace

SaveReport save_state_dict(const std::string& folder, fsdp::StateDictKind kind, const SaveState& state, const HostComm& comm) {
  SaveJob job = make_save_job("", state, comm);
  job.folder = io::without_slash(folder);
  job.is_in_run = false;
  if (kind != fsdp::StateDictKind::local) replace_units(job, state, kind);
  return run_save_job(job, comm, {}, {});
}

fsdp::StateDict read_state_dict(const std::string& folder, const ReadPart& part) {
  ParameterReader reader(resolve_checkpoint(folder));
  fsdp::StateDict dict;
  for (const UnitEntry& unit : reader.manifest().units) {
    for (const fsdp::ParameterSpec& p : unit.parameters) {
      dict.emplace(p.name, read_rows(reader, p, std::string(kMasterKind), unit.is_whole() ? ReadPart{} : part));
    }
  }
  reader.finish();
  return dict;
}

optim::OptimStateDict read_optim_state_dict(const std::string& folder, const ReadPart& part) {
  ParameterReader reader(resolve_checkpoint(folder));
  const Manifest& manifest = reader.manifest();
  optim::OptimStateDict dict;
  if (manifest.optimizer.empty()) return dict;
  dict.groups.emplace_back();
  for (const UnitEntry& unit : manifest.units) {
    for (const fsdp::ParameterSpec& p : unit.parameters) {
      if (unit.role == UnitRole::buffer) continue;
      dict.groups.back().parameters.emplace_back(p.name);
      const auto own = manifest.parameter_steps.find(p.name);
      const std::int64_t steps = own != manifest.parameter_steps.end() ? own->second : manifest.optimizer_steps;
      for (const std::string& kind : manifest.state_kinds) {
        if (steps == 0 || !reader.has(p.name, kind)) continue;
        optim::ParameterState& state = dict.state[p.name];
        state.tensors.emplace(kind, read_rows(reader, p, kind, part));
        state.scalars["step"] = static_cast<double>(steps);
      }
    }
  }
  reader.finish();
  return dict;
}

}  // namespace mica::checkpoint
