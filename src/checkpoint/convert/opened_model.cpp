#include "opened_model.hpp"

#include <algorithm>
#include <filesystem>

#include "mica/checkpoint/folder.hpp"

#include "../parameter_reader.hpp"
#include "hf_source.hpp"

namespace mica::checkpoint {
namespace {

OpenedModel open_hf(const std::string& folder) {
  OpenedModel opened;
  opened.name = "Hugging Face folder " + folder;
  auto source = std::make_unique<HfSource>(folder);
  source->check_tied_head();
  opened.keys = source->model().keys;
  for (const HfTensor& tensor : source->model().tensors) opened.tensors.push_back({tensor.parameter, tensor.shape});
  opened.source = std::move(source);
  return opened;
}

OpenedModel open_checkpoint_folder(const std::string& folder) {
  OpenedModel opened;
  opened.name = "checkpoint " + folder;
  auto source = std::make_unique<ParameterReader>(folder);
  opened.manifest = &source->manifest();
  opened.keys = ModelKeys(opened.manifest->model, folder);
  for (const UnitEntry& unit : opened.manifest->units) {
    for (const fsdp::ParameterSpec& p : unit.parameters) opened.tensors.push_back({p.name, p.shape, unit.role});
  }
  opened.source = std::move(source);
  return opened;
}

}  // namespace

const OpenedModel::Tensor* OpenedModel::find(const std::string& tensor) const {
  const auto found = std::ranges::find(tensors, tensor, &Tensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

OpenedModel open_model(const std::string& path) {
  std::error_code error;
  const bool is_hf = std::filesystem::exists(path + "/config.json", error);
  return is_hf ? open_hf(path) : open_checkpoint_folder(resolve_checkpoint(path));
}

}  // namespace mica::checkpoint
