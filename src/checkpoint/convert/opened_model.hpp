#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"

#include "../parameter_source.hpp"
#include "model_keys.hpp"

namespace mica::checkpoint {

/// A model whose parameters can be read: a checkpoint's, or a Hugging Face folder's.
struct OpenedModel {
  struct Tensor {
    std::string name;
    Shape shape;
    UnitRole role = UnitRole::unit;
  };

  std::string name;  ///< "Hugging Face folder gpt2", "checkpoint runs/x/checkpoints/step-00000500"
  std::unique_ptr<ParameterSource> source;
  const Manifest* manifest = nullptr;  ///< the source's own; null for a Hugging Face folder
  ModelKeys keys{{}, ""};
  std::vector<Tensor> tensors;  ///< in the model's order

  [[nodiscard]] const Tensor* find(const std::string& tensor) const;
};

/// @param path  a folder with config.json (Hugging Face), or what resolve_checkpoint() takes.
/// @throws ConfigError, CheckpointError: nothing there, damaged, or what Mica has no counterpart of.
[[nodiscard]] OpenedModel open_model(const std::string& path);

}  // namespace mica::checkpoint
