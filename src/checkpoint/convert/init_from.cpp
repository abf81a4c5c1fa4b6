#include "mica/checkpoint/init_from.hpp"

#include <chrono>
#include <filesystem>
#include <memory>

#include "mica/checkpoint/folder.hpp"

#include "../parameter_reader.hpp"
#include "../save_job.hpp"
#include "hf_source.hpp"

namespace mica::checkpoint {
namespace {

/// Where values come from, and what is known of the model there.
struct Opened {
  std::string name;
  std::unique_ptr<ParameterSource> source;
  ModelKeys keys{{}, ""};
  std::map<std::string, Shape> parameters;
};

Opened open_hf(const std::string& folder) {
  Opened opened;
  opened.name = "Hugging Face folder " + folder;
  auto source = std::make_unique<HfSource>(folder);
  source->check_tied_head();
  opened.keys = source->model().keys;
  for (const HfTensor& tensor : source->model().tensors) opened.parameters.emplace(tensor.parameter, tensor.shape);
  opened.source = std::move(source);
  return opened;
}

Opened open_checkpoint_source(const std::string& path) {
  Opened opened;
  const std::string folder = resolve_checkpoint(path);
  opened.name = "checkpoint " + folder;
  auto source = std::make_unique<ParameterReader>(folder);
  opened.keys = ModelKeys(source->manifest().model, folder);
  for (const UnitEntry& unit : source->manifest().units) {
    for (const fsdp::ParameterSpec& p : unit.parameters) opened.parameters.emplace(p.name, p.shape);
  }
  opened.source = std::move(source);
  return opened;
}

Opened open(const std::string& path) {
  std::error_code error;
  const bool is_hf = std::filesystem::exists(path + "/config.json", error);
  return is_hf ? open_hf(path) : open_checkpoint_source(path);
}

/// Dropout is of training, not of the model.
void check_keys(const ModelKeys& source, const ModelKeys& run) {
  const ModelKeys there = normalized(source);
  const ModelKeys here = normalized(run);
  for (const auto& [key, value] : there.all()) {
    if (key == "dropout" || !here.has(key)) continue;
    if (key == "hidden" && (value == "0" || here.text(key) == "0")) continue;  // shapes are compared
    require<ConfigError>(here.text(key) == value,
                         "model.{} = {}, but {} has {}: a run starts from parameters of the same model only; "
                         "set --model.{}={}",
                         key, here.text(key), there.place(), value, key, value);
  }
}

void check_parameters(const Opened& opened, const fsdp::Root& root) {
  require<ConfigError>(root.ignored_parameters().empty(),
                       "{} cannot give values to parameters that are ignored, such as {}", opened.name,
                       root.ignored_parameters().empty() ? "" : root.ignored_parameters().front().full_name);
  std::map<std::string, Shape> left = opened.parameters;
  for (const UnitEntry& unit : unit_entries(saved_units(root))) {
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
  for (const fsdp::UnitStorage* storage : unit_storages(root)) {
    auto* shard = storage->master().as<float>();
    for (const fsdp::Piece& piece : storage->layout().pieces(storage->shard_rank())) {
      for (std::int64_t i = 0; i < piece.num_runs(); ++i) {
        const fsdp::Piece::Run run = piece.run(i);
        source.read(piece.parameter, std::string(kMasterKind), run.begin, run.numel(), shard + run.offset);
      }
    }
  }
}

}  // namespace

InitReport init_from(const std::string& path, const std::map<std::string, std::string>& model, fsdp::Root& root,
                     const HostComm& comm) {
  const auto start = std::chrono::steady_clock::now();
  InitReport report;
  comm.all_or_throw([&] {
    require(root.state() == fsdp::TrainingState::idle,
            "parameters are given values while the root is {}: do it between passes",
            fsdp::training_state_name(root.state()));
    const Opened opened = open(path);
    check_keys(opened.keys, ModelKeys(model, "the config"));
    check_parameters(opened, root);
    root.device_mesh().compute().synchronize();  // the initial values
    read_pieces(*opened.source, root);
    report.source = opened.name;
    for (const auto& [name, shape] : opened.parameters) report.numel += shape.numel();
    return std::string();
  });
  report.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace mica::checkpoint
