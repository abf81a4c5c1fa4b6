#include "mica/checkpoint/init_from.hpp"

#include <chrono>
#include <map>
#include <vector>

#include "mica/checkpoint/folder.hpp"
#include "mica/device/device_memory.hpp"
#include "mica/tensor/host_math.hpp"

#include "../read_plan.hpp"
#include "../save_job.hpp"
#include "../whole_tensors.hpp"
#include "hf_config.hpp"
#include "opened_model.hpp"

namespace mica::checkpoint {
namespace {

bool may_differ(const std::string& key, const ModelKeys& there, const ModelKeys& here) {
  if (key == "dropout") return true;
  if (key == "context") return there.has("type") && there.text("type") == "llama";
  return key == "hidden" && (there.text(key) == "0" || here.text(key) == "0");  // shapes are compared
}

/// The same parameters on both sides. Buffers are taken over where the source has them.
void check_parameters(const OpenedModel& opened, const fsdp::Root& root) {
  std::map<std::string, Shape> left;
  for (const OpenedModel::Tensor& tensor : opened.tensors) {
    if (tensor.role != UnitRole::buffer) left.emplace(tensor.name, tensor.shape);
  }
  for (const UnitEntry& unit : unit_entries(saved_units(root))) {
    if (unit.role == UnitRole::buffer) continue;
    for (const fsdp::ParameterSpec& p : unit.parameters) {
      const auto found = left.find(p.name);
      require<ConfigError>(found != left.end(), "{}: has no parameter {}, which this run's model has", opened.name,
                           p.name);
      require<ConfigError>(found->second == p.shape,
                           "{}: parameter {} has the shape {} there and {} in this run's model", opened.name, p.name,
                           found->second.to_string(), p.shape.to_string());
      left.erase(found);
    }
  }
  require<ConfigError>(left.empty(), "{}: has the parameter {}, which this run's model has not", opened.name,
                       left.empty() ? "" : left.begin()->first);
}

void read_pieces(ParameterSource& source, const fsdp::Root& root) {
  const Pool& pool = root.device_mesh().pool();
  for (const fsdp::UnitStorage* storage : unit_storages(root)) {
    const TensorView master = storage->master();
    // What a device holds is made in the host's memory first, unit by unit; padding stays zero.
    std::vector<float> host(device_of(pool, master.data) == DeviceKind::cpu ? 0 : static_cast<std::size_t>(master.numel()));
    float* shard = host.empty() ? master.as<float>() : host.data();
    for (const fsdp::Piece& piece : storage->layout().pieces(storage->shard_rank())) {
      for (std::int64_t i = 0; i < piece.num_runs(); ++i) {
        const fsdp::Piece::Run run = piece.run(i);
        source.read_f32(piece.parameter, std::string(kMasterKind), run.begin, run.numel(), shard + run.offset);
      }
    }
    if (!host.empty()) copy_now(pool, master.data, host.data(), master.bytes());
  }
}

/// Ignored parameters and buffers, in the type that they have here.
void read_whole(const OpenedModel& opened, const fsdp::Root& root) {
  fsdp::DeviceMesh& device_mesh = root.device_mesh();
  for (const WholeTensor& tensor : whole_tensors(root)) {
    const OpenedModel::Tensor* there = opened.find(tensor.name);
    if (there == nullptr || there->shape != tensor.shape) continue;  // a buffer: this model's own value stays
    const DType from = opened.source->dtype(tensor.name, std::string(kMasterKind));
    const fsdp::StateTensor read = fsdp::StateTensor::on_host(tensor.shape, from);
    opened.source->read(tensor.name, std::string(kMasterKind), 0, read.numel(), read.view().data);
    const fsdp::StateTensor here = fsdp::StateTensor::on_host(tensor.shape, tensor.data.dtype);
    convert(read.view().data, from, here.view().data, tensor.data.dtype, read.numel());
    copy_now(device_mesh.pool(), tensor.data.data, here.view().data, tensor.data.bytes());
  }
}

void check_model(const OpenedModel& opened, const std::map<std::string, std::string>& model, const fsdp::Root& root) {
  require(root.state() == fsdp::TrainingState::idle,
          "parameters are given values while the root is {}: do it between passes",
          fsdp::training_state_name(root.state()));
  check_model_keys({opened.keys.place(), opened.keys.all()}, model);
  check_parameters(opened, root);
  root.device_mesh().compute().synchronize();  // the initial values
}

InitReport report_of(const OpenedModel& opened) {
  InitReport report;
  report.source = opened.name;
  for (const OpenedModel::Tensor& tensor : opened.tensors) {
    if (tensor.role != UnitRole::buffer) report.numel += tensor.shape.numel();
  }
  return report;
}

/// Every rank reads its own pieces.
InitReport from_hugging_face(const std::string& path, const std::map<std::string, std::string>& model,
                             const fsdp::Root& root, const HostComm& comm) {
  InitReport report;
  (void)comm.all_or_throw([&] {
    const OpenedModel opened = open_model(path);
    check_model(opened, model, root);
    read_pieces(*opened.source, root);
    read_whole(opened, root);
    report = report_of(opened);
    return std::string();
  });
  return report;
}

/// Every block is read by one rank ([Note: shared reading]).
InitReport from_checkpoint(const std::string& folder, const std::map<std::string, std::string>& model,
                           const fsdp::Root& root, const HostComm& comm) {
  const Manifest manifest = share_manifest(folder, comm);
  const OpenedModel opened = describe_checkpoint(folder, manifest);
  const Mesh& mesh = root.device_mesh().mesh();
  std::vector<SavedUnit> units;
  std::vector<int> mesh_ranks;
  for (const std::string& each : comm.all_or_throw([&] {
         check_model(opened, model, root);
         units = saved_units(root);
         return std::to_string(mesh.rank());
       })) {
    mesh_ranks.push_back(std::stoi(each));
  }
  const auto make_sinks = [&] {
    std::vector<Sink> sinks;
    const std::string kind(kMasterKind);
    for (const fsdp::UnitStorage* storage : unit_storages(root)) sinks.push_back({sinks.size(), kind, storage->master()});
    std::size_t unit = sinks.size();
    for (const WholeTensor& tensor : whole_tensors(root)) {
      const OpenedModel::Tensor* there = opened.find(tensor.name);
      if (there != nullptr && there->shape == tensor.shape) sinks.push_back({unit, kind, tensor.data});
      ++unit;  // a buffer that the checkpoint has not keeps this model's own value
    }
    return sinks;
  };
  const ReadPlan plan = make_read_plan({folder, manifest, comm, units, mesh, mesh_ranks, /*is_of_this_mesh=*/false});
  (void)read_together({folder, comm, root.device_mesh().pool(), plan.parts, make_sinks, plan.for_each_destination});
  return report_of(opened);
}

}  // namespace

ModelDescription read_model_description(const std::string& path) {
  if (is_hf_folder(path)) {
    const HfModel model = read_hf_model(path);
    return {model.keys.place(), model.keys.all()};
  }
  const std::string folder = resolve_checkpoint(path);
  return {folder, read_manifest(folder).model};
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

InitReport init_from(const std::string& path, const std::map<std::string, std::string>& model, fsdp::Root& root,
                     const HostComm& comm) {
  const auto start = std::chrono::steady_clock::now();
  const std::string checkpoint =
      comm.from_root(0, [&] { return is_hf_folder(path) ? std::string() : resolve_checkpoint(path); });
  InitReport report =
      checkpoint.empty() ? from_hugging_face(path, model, root, comm) : from_checkpoint(checkpoint, model, root, comm);
  report.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace mica::checkpoint
