// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "mica/checkpoint/hf_tokenizer.hpp"
#include "mica/comm/host_comm.hpp"
#include "mica/fsdp/root.hpp"

namespace mica::checkpoint {

/// Description of the model in a folder for init_from().
struct ModelDescription {
  std::string source;                       ///< "gpt2/config.json", "runs/x/checkpoints/step-00000500"
  std::map<std::string, std::string> keys;  ///< keys of [model] that the folder has: "layers" -> "12"
};

/// Reads only config.json or the manifest. @throws ConfigError, CheckpointError
[[nodiscard]] ModelDescription read_model_description(const std::string& path);

/// The tokenizer of the model in such a folder. Its source is empty if the model came from no Hugging Face folder.
/// @throws ConfigError, CheckpointError, IoError
[[nodiscard]] HfTokenizer read_model_tokenizer(const std::string& path);

/// Checks that a run with these keys of [model] has the same model. Dropout may differ, and so may a Llama's context, because its
/// positions have no parameters. @throws ConfigError naming every key that differs, with both values.
void check_model_keys(const ModelDescription& source, const std::map<std::string, std::string>& run);

struct InitReport {
  std::string source;      ///< "Hugging Face folder gpt2", "checkpoint runs/x/checkpoints/step-00000500"
  std::int64_t numel = 0;  ///< of the whole model
  double ms = 0;
  std::shared_ptr<const HfTokenizer> tokenizer;  ///< on rank 0, if the source has one: for SaveState
};

/// Initialises every parameter of the model (ignored ones too, in their dtype) by name, from a Hugging Face folder (one with
/// config.json) or from a checkpoint (or the newest one of a run's folder); and buffers, if a checkpoint has them. Optimizer
/// state and step are not taken. From a Hugging Face folder, rank 0 reads the headers and each rank its own pieces (replicas
/// take turns reading units and send them to each other); from a checkpoint, each block is read and verified by one rank, as in load().
/// Memory: less than 150 MiB per rank in addition to the model.
/// @param model  the run's keys of [model], as for check_model_keys().
/// @param root  initialised, between passes.
/// @throws ConfigError naming the keys and both values, or the parameter; CheckpointError: a source that is damaged or does
///         not fit. Thrown on all ranks. The model's values are undefined afterwards. @collective over `comm`: all ranks of the mesh.
InitReport init_from(const std::string& path, const std::map<std::string, std::string>& model, fsdp::Root& root, const HostComm& comm);

}  // namespace mica::checkpoint
