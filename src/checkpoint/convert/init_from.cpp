// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/init_from.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <vector>

#include "mica/checkpoint/folder.hpp"
#include "mica/tensor/host_math.hpp"

#include "../read_plan.hpp"
#include "../save_job.hpp"
#include "../tokenizer_files.hpp"
#include "../whole_tensors.hpp"
#include "hf_config.hpp"
#include "hf_tokenizer.hpp"
#include "opened_model.hpp"

namespace mica::checkpoint {
namespace {

/// Most bytes of a broadcast.
constexpr std::int64_t kBroadcastBytes = std::int64_t{16} << 20, kBroadcastNumel = kBroadcastBytes / 4;

bool may_differ(const std::string& key, const ModelKeys& there, const ModelKeys& here) {
  if (key == "dropout") return true;
  if (key == "context") return there.has("type") && there.text("type") == "llama";
  return key == "intermediate_size" && (there.text(key) == "0" || here.text(key) == "0");  // shapes are compared
}

/// Requires the same parameters on both sides. Buffers may be missing in the source.
void check_parameters(const OpenedModel& opened, const fsdp::Root& root) {
  std::map<std::string, Shape> left;
  for (const OpenedModel::Tensor& tensor : opened.tensors) {
    if (tensor.role != UnitRole::buffer) left.emplace(tensor.name, tensor.shape);
  }
  for (const UnitEntry& unit : unit_entries(saved_units(root))) {
    if (unit.role == UnitRole::buffer) continue;
    for (const fsdp::ParameterSpec& p : unit.parameters) {
      const auto found = left.find(p.name);
      require<ConfigError>(found != left.end(), "{}: has no parameter {}, which this run's model has", opened.name, p.name);
      require<ConfigError>(found->second == p.shape, "{}: parameter {} has the shape {} there and {} in this run's model", opened.name,
                           p.name, found->second.to_string(), p.shape.to_string());
      left.erase(found);
    }
  }
  require<ConfigError>(left.empty(), "{}: has the parameter {}, which this run's model does not have", opened.name,
                       left.empty() ? "" : left.begin()->first);
}

/// The ranks that hold the same pieces of a unit. Used on the compute stream: nothing runs on the all_reduce stream meanwhile.
ProcessGroup& sharers_of(const fsdp::UnitStorage& unit) { return unit.device_mesh().all_reduce_group(unit.shard_size()); }

void read_pieces(ParameterSource& source, const fsdp::UnitStorage& storage, const Pool& pool) {
  const TensorView master = storage.write_master();
  // For a device, the shard is built in host memory first; padding stays zero.
  const bool is_on_host = pool.device_of(master.data) == DeviceKind::cpu;
  std::vector<float> host(is_on_host ? 0 : static_cast<std::size_t>(master.numel()));
  float* shard = host.empty() ? master.as<float>() : host.data();
  for (const fsdp::Piece& piece : storage.layout().pieces(storage.shard_rank())) {
    const std::string& name = storage.parameters()[piece.parameter].full_name;
    for (std::int64_t i = 0; i < piece.num_runs(); ++i) {
      const fsdp::Run run = piece.run(i);
      source.read_f32(name, std::string(kMasterKind), run.begin, run.numel(), shard + run.offset);
    }
  }
  if (!host.empty()) pool.copy(master.data, host.data(), master.bytes());
}

std::int64_t broadcast_bytes(const fsdp::UnitStorage& unit) {
  return sharers_of(unit).num_ranks() == 1 ? 0 : std::min(kBroadcastBytes, unit.master().bytes());
}

/// Sends a unit's shard from the rank of its sharers that has read it to the others. @param buffer  of broadcast_bytes()
/// @collective over the sharers
void send_to_sharers(const fsdp::UnitStorage& unit, int reader, const Buffer& buffer) {
  ProcessGroup& sharers = sharers_of(unit);
  if (sharers.num_ranks() == 1) return;
  const fsdp::DeviceMesh& device_mesh = unit.device_mesh();
  Stream& compute = device_mesh.compute();
  const TensorView master = unit.write_master();
  const TensorView shard{master.data, Shape{master.bytes()}, DType::u8};
  for (std::int64_t at = 0; at < shard.bytes(); at += kBroadcastBytes) {
    const TensorView part = shard.slice(at, std::min(kBroadcastBytes, shard.bytes() - at));
    const TensorView message{buffer.data(), part.shape, part.dtype};
    if (sharers.rank() == reader) device_mesh.kernels().copy(compute, part, message);
    sharers.broadcast(compute, "init_from", message, reader);
    if (sharers.rank() != reader) device_mesh.kernels().copy(compute, message, part);
  }
}

/// Reads ignored parameters part by part, each on one rank, and converts them to the dtype that they have here.
void read_whole(const OpenedModel& opened, const fsdp::Root& root, const HostComm& comm) {
  int next = 0;
  for (const WholeTensor& tensor : whole_tensors(root)) {
    if (opened.find(tensor.name) == nullptr) continue;  // a buffer: this model's own value stays
    const int reader = next++ % comm.num_ranks();
    const TensorView whole = tensor.data.reshaped(Shape{tensor.data.numel()});
    for (std::int64_t at = 0; at < whole.numel(); at += kBroadcastNumel) {
      const TensorView part = whole.slice(at, std::min(kBroadcastNumel, whole.numel() - at));
      const std::string bytes = comm.from_root(reader, [&] {
        std::vector<float> values(static_cast<std::size_t>(part.numel()));
        opened.source->read_f32(tensor.name, std::string(kMasterKind), at, std::ssize(values), values.data());
        std::string converted(static_cast<std::size_t>(part.bytes()), '\0');
        convert(values.data(), DType::f32, converted.data(), part.dtype, std::ssize(values));
        return converted;
      });
      root.device_mesh().pool().copy(part.data, bytes.data(), part.bytes());
    }
  }
}

void check_model(const OpenedModel& opened, const std::map<std::string, std::string>& model, fsdp::Root& root) {
  require(root.state() == fsdp::TrainingState::idle, "init_from() is called while the root is {}: call it between passes",
          fsdp::training_state_name(root.state()));
  check_model_keys({opened.keys.place(), opened.keys.all()}, model);
  check_parameters(opened, root);
  root.reshard();                              // unsharded parameters would be stale
  root.device_mesh().compute().synchronize();  // the initial values
}

/// @returns the mesh's ranks by the HostComm's. @collective
std::vector<int> check_on_all_ranks(const OpenedModel& opened, const std::map<std::string, std::string>& model, fsdp::Root& root,
                                    const HostComm& comm) {
  std::vector<int> mesh_ranks;
  for (const std::string& each : comm.all_or_throw([&] {
         check_model(opened, model, root);
         return std::to_string(root.device_mesh().mesh().rank());
       })) {
    mesh_ranks.push_back(std::stoi(each));
  }
  return mesh_ranks;
}

InitReport report_of(const OpenedModel& opened) {
  InitReport report;
  report.source = opened.name;
  for (const OpenedModel::Tensor& tensor : opened.tensors) {
    if (tensor.role != UnitRole::buffer) report.numel += tensor.shape.numel();
  }
  return report;
}

/// Every rank reads its own pieces; ranks that hold the same ones take turns.
InitReport from_hugging_face(const std::string& path, const std::map<std::string, std::string>& model, fsdp::Root& root,
                             const HostComm& comm) {
  const OpenedModel opened = share_hf_folder(path, comm);
  (void)check_on_all_ranks(opened, model, root, comm);
  const fsdp::DeviceMesh& device_mesh = root.device_mesh();
  const std::vector<const fsdp::UnitStorage*> units = unit_storages(root);
  const auto reader_of = [&](std::size_t unit) { return static_cast<int>(unit) % sharers_of(*units[unit]).num_ranks(); };
  Buffer buffer;  // for all broadcasts
  comm.agree([&] {
    std::int64_t bytes = 0;
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (reader_of(u) == sharers_of(*units[u]).rank()) read_pieces(*opened.source, *units[u], device_mesh.pool());
      bytes = std::max(bytes, broadcast_bytes(*units[u]));
    }
    buffer = device_mesh.pool().allocate(bytes, MemoryRole::communication, device_mesh.compute());
  });
  for (std::size_t u = 0; u < units.size(); ++u) send_to_sharers(*units[u], reader_of(u), buffer);
  device_mesh.compute().synchronize();
  read_whole(opened, root, comm);
  return report_of(opened);
}

/// Every block is read by one rank ([Note: shared reading]).
InitReport from_checkpoint(const std::string& folder, const std::map<std::string, std::string>& model, fsdp::Root& root,
                           const HostComm& comm) {
  const Manifest manifest = share_manifest(folder, comm);
  const OpenedModel opened = describe_checkpoint(folder, manifest);
  const Mesh& mesh = root.device_mesh().mesh();
  const std::vector<int> mesh_ranks = check_on_all_ranks(opened, model, root, comm);
  const std::vector<SavedUnit> units = saved_units(root);
  const auto make_sinks = [&] {
    std::vector<Sink> sinks;
    const std::string kind(kMasterKind);
    for (const fsdp::UnitStorage* storage : unit_storages(root)) sinks.push_back({sinks.size(), kind, storage->write_master()});
    std::size_t unit = sinks.size();
    for (const WholeTensor& tensor : whole_tensors(root)) {
      const OpenedModel::Tensor* there = opened.find(tensor.name);
      if (there != nullptr && there->shape == tensor.shape) sinks.push_back({unit, kind, tensor.data});
      ++unit;  // a buffer that is missing in the checkpoint keeps this model's value
    }
    return sinks;
  };
  const ReadPlan plan = make_read_plan({folder, manifest, comm, units, mesh, mesh_ranks, /*is_of_this_mesh=*/false});
  (void)read_together({folder, comm, root.device_mesh().pool(), plan.parts, make_sinks, plan.for_each_destination});
  InitReport report = report_of(opened);
  report.tokenizer = share_tokenizer(folder, manifest, comm);
  return report;
}

}  // namespace

ModelDescription read_model_description(const std::string& path) {
  if (is_hf_folder(path)) {
    const HfModel model = read_hf_model(path);
    return {model.keys.place(), model.keys.all()};
  }
  std::error_code error;
  require<ConfigError>(
      std::filesystem::is_directory(path, error),
      "{}: no such folder; expected a checkpoint (RUN/checkpoints/step-...), a run's folder or a Hugging Face model's folder, "
      "already on this machine: nothing is downloaded",
      path);
  const std::string folder = resolve_checkpoint(path);
  return {folder, read_manifest_header(folder).model};
}

HfTokenizer read_model_tokenizer(const std::string& path) {
  if (is_hf_folder(path)) return read_hf_tokenizer(path);
  const std::string folder = resolve_checkpoint(path);
  return read_tokenizer(folder, read_manifest_header(folder).tokenizer);
}

void check_model_keys(const ModelDescription& source, const std::map<std::string, std::string>& run) {
  const ModelKeys there = normalized({source.keys, source.source});
  const ModelKeys here = normalized({run, "the config"});
  std::string differences, flags;
  for (const auto& [key, value] : there.all()) {
    if (!here.has(key) || here.text(key) == value || may_differ(key, there, here)) continue;
    differences += differences.empty() ? fmt::format("model.{} = {}, but {} has {}", key, here.text(key), source.source, value)
                                       : fmt::format("; model.{} = {}, but {} there", key, here.text(key), value);
    flags += fmt::format(" --model.{}={}", key, value);
  }
  require<ConfigError>(differences.empty(), "{}: a run starts from parameters of the same model only; leave these keys out, or set{}",
                       differences, flags);
}

InitReport init_from(const std::string& path, const std::map<std::string, std::string>& model, fsdp::Root& root, const HostComm& comm) {
  const auto start = std::chrono::steady_clock::now();
  std::shared_ptr<const HfTokenizer> tokenizer;  // rank 0's, of a Hugging Face folder
  const std::string checkpoint = comm.from_root(0, [&] {
    if (!is_hf_folder(path)) return resolve_checkpoint(path);
    tokenizer = std::make_shared<HfTokenizer>(read_hf_tokenizer(path));
    return std::string();
  });
  InitReport report = checkpoint.empty() ? from_hugging_face(path, model, root, comm) : from_checkpoint(checkpoint, model, root, comm);
  if (checkpoint.empty()) report.tokenizer = std::move(tokenizer);
  report.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace mica::checkpoint
