// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "mica/checkpoint/save.hpp"
#include "mica/fsdp/fully_shard.hpp"
#include "mica/io/atomic_file.hpp"
#include "mica/io/safetensors.hpp"
#include "mica/nn/models/gpt2.hpp"
#include "mica/nn/models/llama.hpp"

#include "../../../src/checkpoint/convert/hf_source.hpp"
#include "support/paths.hpp"
#include "testing/local_group.hpp"

namespace mica::test {

/// A folder that transformers wrote (tests/reference/make_hf_reference.py).
inline std::string hf_reference(const std::string& name) { return test::reference_path("hf_" + name); }

/// All tensors of a folder or file, as f32.
using TensorValues = std::map<std::string, std::vector<float>>;
inline TensorValues tensors_of_file(const std::string& path) {
  TensorValues all;
  io::SafetensorsFile file(path);
  for (const io::SafetensorsEntry& entry : file.tensors()) {
    all[entry.name].resize(static_cast<std::size_t>(entry.numel));
    file.read(entry, 0, entry.numel, all[entry.name].data());
  }
  return all;
}
inline TensorValues tensors_of_folder(const std::string& folder) {
  TensorValues all;
  for (const auto& each : std::filesystem::directory_iterator(folder)) {
    if (each.path().extension() == ".safetensors") all.merge(tensors_of_file(each.path()));
  }
  return all;
}

/// A Hugging Face folder that the test changes before it is written.
struct HfFolder {  // NOLINT(bugprone-exception-escape): only ordered_json could throw when it is moved
  nlohmann::ordered_json config;
  struct Tensor {
    std::vector<std::int64_t> dims;
    std::vector<float> values;
    DType dtype = DType::f32;
  };
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> texts;  ///< other files

  /// What transformers wrote.
  static HfFolder reference(const std::string& name) {
    HfFolder folder;
    folder.config = nlohmann::ordered_json::parse(io::read_file(hf_reference(name) + "/config.json"));
    for (const auto& each : std::filesystem::directory_iterator(hf_reference(name))) {
      if (each.path().extension() != ".safetensors") continue;
      io::SafetensorsFile file(each.path());
      for (const io::SafetensorsEntry& entry : file.tensors()) {
        Tensor& tensor = folder.tensors[entry.name];
        tensor.dims = entry.dims;
        tensor.values.resize(static_cast<std::size_t>(entry.numel));
        file.read(entry, 0, entry.numel, tensor.values.data());
      }
    }
    return folder;
  }
  void write_file(const std::string& path) const {
    std::vector<io::SafetensorsSpec> specs;
    for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.dims});
    io::SafetensorsWriter writer(path, specs, {});
    for (const auto& [name, tensor] : tensors) writer.write(name, 0, std::ssize(tensor.values), tensor.values.data());
    writer.finish();
  }
  void write(const std::string& folder) const {
    std::filesystem::create_directory(folder);
    std::ofstream(folder + "/config.json") << config.dump(1);
    write_file(folder + "/model.safetensors");
    for (const auto& [name, text] : texts) std::ofstream(folder + "/" + name) << text;
  }
};

/// The model of a Hugging Face folder, without storage.
inline std::unique_ptr<nn::Module> make_model(const checkpoint::HfModel& model) {
  const checkpoint::ModelKeys& keys = model.keys;
  if (keys.text("type") == "llama") {
    nn::LlamaConfig config{.layers = keys.integer("layers"),
                           .heads = keys.integer("heads"),
                           .kv_heads = keys.integer("kv_heads"),
                           .head_dim = keys.integer("head_dim"),
                           .width = keys.integer("width"),
                           .intermediate_size = keys.integer("intermediate_size"),
                           .context = keys.integer("context"),
                           .vocab_size = keys.integer("vocab_size"),
                           .tie_embeddings = keys.flag("tie_embeddings"),
                           .rms_eps = keys.real("rms_eps")};
    config.rotary.theta = keys.real("rope_theta");
    if (keys.text("rope_scaling") == "llama3") config.rotary.scaling = nn::RotaryOptions::Scaling::llama3;
    config.rotary.factor = keys.real("rope_factor");
    config.rotary.low_freq_factor = keys.real("rope_low_freq_factor");
    config.rotary.high_freq_factor = keys.real("rope_high_freq_factor");
    config.rotary.original_context = keys.integer("rope_original_context");
    return std::make_unique<nn::Llama>(config);
  }
  return std::make_unique<nn::Gpt2>(nn::Gpt2Config{.layers = keys.integer("layers"),
                                                   .heads = keys.integer("heads"),
                                                   .width = keys.integer("width"),
                                                   .context = keys.integer("context"),
                                                   .vocab_size = keys.integer("vocab_size"),
                                                   .tie_embeddings = keys.flag("tie_embeddings")});
}

/// One rank's part of a model that is sharded, a unit for each block, with storage.
struct ShardedHfModel {
  ShardedHfModel(std::unique_ptr<ProcessGroup> world, const checkpoint::HfModel& model, const fsdp::Options& options = {}, int replicas = 1)
      : pool(make_cpu_pool()),
        kernels(make_cpu_kernels(*pool)),
        mesh(make_mesh(std::move(world), replicas)),
        device_mesh(mesh, *pool, *kernels, fsdp::Streams::make(StreamMode::inlined, make_cpu_stream)),
        module(make_model(model)) {
    module->for_each_module([&](const std::string&, nn::Module& each) {
      if (each.type_name().ends_with("_block")) fsdp::fully_shard(each, device_mesh, options);
    });
    fsdp::fully_shard(*module, device_mesh, options);
    root().initialize(1);
    device_mesh.compute().synchronize();
  }
  static Mesh make_mesh(std::unique_ptr<ProcessGroup> world, int replicas) {
    const int num_ranks = world->num_ranks();
    return {std::move(world), MeshGeometry{.world_size = num_ranks, .shard_size = num_ranks / replicas, .replicas = replicas}};
  }
  [[nodiscard]] fsdp::Root& root() { return fsdp::root_of(*module); }

  std::unique_ptr<Pool> pool;
  std::unique_ptr<Kernels> kernels;
  Mesh mesh;
  fsdp::DeviceMesh device_mesh;
  std::unique_ptr<nn::Module> module;
};

/// Saves a model with the folder's values on `num_ranks` ranks, as a run's first step.
/// @returns the checkpoint's folder.
inline std::string save_hf_model(const std::string& hf_folder, int num_ranks, const std::string& run) {
  run_local_ranks(num_ranks, [&](std::unique_ptr<ProcessGroup> world) {
    checkpoint::HfSource source(hf_folder);
    ShardedHfModel model(std::move(world), source.model());
    for (const fsdp::Piece& p : model.root().pieces()) {
      source.read(model.root().parameter(p).full_name, "master", p.begin, p.numel(), model.root().write_master(p).as<float>());
    }
    const auto comm = make_group_comm(model.device_mesh.metrics_group(), model.device_mesh.compute());
    checkpoint::SaveState state{.root = &model.root(), .run_id = "r0", .step = 1};
    state.model = source.model().keys.all();
    checkpoint::save(run, state, *comm);
  });
  return run + "/checkpoints/step-00000001";
}

}  // namespace mica::test
