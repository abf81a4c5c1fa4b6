// SPDX-License-Identifier: Apache-2.0
#include "opened_model.hpp"

#include <algorithm>
#include <filesystem>

#include "mica/checkpoint/folder.hpp"

#include "../parameter_reader.hpp"
#include "hf_source.hpp"

namespace mica::checkpoint {
namespace {

std::unique_ptr<HfSource> open_hf(const std::string& folder) {
  auto source = std::make_unique<HfSource>(folder);
  source->check_tied_head();
  return source;
}

OpenedModel describe_hf(const std::string& folder, std::unique_ptr<HfSource> source) {
  OpenedModel opened;
  opened.name = "Hugging Face folder " + folder;
  opened.keys = source->model().keys;
  for (const HfTensor& tensor : source->model().tensors) opened.tensors.push_back({tensor.parameter, tensor.shape});
  opened.source = std::move(source);
  return opened;
}

OpenedModel open_checkpoint_folder(const std::string& folder) {
  auto source = std::make_unique<ParameterReader>(folder);
  OpenedModel opened = describe_checkpoint(folder, source->manifest());
  opened.source = std::move(source);
  return opened;
}

}  // namespace

OpenedModel describe_checkpoint(const std::string& folder, const Manifest& manifest) {
  OpenedModel opened;
  opened.name = "checkpoint " + folder;
  opened.manifest = &manifest;
  opened.keys = ModelKeys(manifest.model, folder);
  for (const UnitEntry& unit : manifest.units) {
    for (const fsdp::ParameterSpec& p : unit.parameters) opened.tensors.push_back({p.name, p.shape, unit.role});
  }
  return opened;
}

const OpenedModel::Tensor* OpenedModel::find(const std::string& tensor) const {
  const auto found = std::ranges::find(tensors, tensor, &Tensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

bool is_hf_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path + "/config.json", error);
}

OpenedModel open_model(const std::string& path) {
  return is_hf_folder(path) ? describe_hf(path, open_hf(path)) : open_checkpoint_folder(resolve_checkpoint(path));
}

OpenedModel share_hf_folder(const std::string& folder, const HostComm& comm) {
  std::unique_ptr<HfSource> source;
  const std::string text = comm.from_root(0, [&] {
    source = open_hf(folder);
    const ModelKeys& keys = source->model().keys;
    const Json told{{"keys", keys.all()}, {"place", keys.place()}, {"tensors", source->tensors().index()}};
    return told.dump(-1, ' ', false, Json::error_handler_t::replace);  // a folder's name may be in any encoding
  });
  if (comm.rank() != 0) {
    const Json told = Json::parse(text);
    source = std::make_unique<HfSource>(hf_model_of({told["keys"], told["place"]}), HfTensors(folder, told["tensors"]));
  }
  return describe_hf(folder, std::move(source));
}

}  // namespace mica::checkpoint
