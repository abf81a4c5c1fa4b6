// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mica/checkpoint/manifest.hpp"
#include "mica/comm/host_comm.hpp"

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
  const Manifest* manifest = nullptr;  ///< null for a Hugging Face folder
  ModelKeys keys{{}, ""};
  std::vector<Tensor> tensors;  ///< in the model's order

  [[nodiscard]] const Tensor* find(const std::string& tensor) const;
};

/// A folder with config.json; others are checkpoints.
[[nodiscard]] bool is_hf_folder(const std::string& path);
/// Keys and tensors of a checkpoint; `source` is null. @param manifest  outlives it; the header is enough.
[[nodiscard]] OpenedModel describe_checkpoint(const std::string& folder, const Manifest& manifest);

/// @param path  a Hugging Face folder, or what resolve_checkpoint() takes.
/// @throws ConfigError, CheckpointError: nothing is there, it is damaged, or Mica has no such model.
[[nodiscard]] OpenedModel open_model(const std::string& path);
/// Opens a Hugging Face folder on all ranks: rank 0 reads config.json and the headers and sends them to the others; a rank opens a
/// file when it reads its data. @throws ConfigError, CheckpointError: the same on all ranks. @collective
[[nodiscard]] OpenedModel share_hf_folder(const std::string& folder, const HostComm& comm);

}  // namespace mica::checkpoint
