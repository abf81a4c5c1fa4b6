#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "mica/checkpoint/hf_tokenizer.hpp"
#include "mica/comm/host_comm.hpp"
#include "mica/fsdp/root.hpp"

namespace mica::checkpoint {

/// What a folder that init_from() takes says of its model.
struct ModelDescription {
  std::string source;                       ///< "gpt2/config.json", "runs/x/checkpoints/step-00000500"
  std::map<std::string, std::string> keys;  ///< of [model], "layers" -> "12"; those that the folder knows
};

/// Reads no more than config.json or the manifest. @throws ConfigError, CheckpointError
[[nodiscard]] ModelDescription read_model_description(const std::string& path);

/// Is a run with these keys of [model] of the same model? Dropout may differ, which is of training, and a Llama's context,
/// whose positions have no parameters. @throws ConfigError naming every key that differs, with both values.
void check_model_keys(const ModelDescription& source, const std::map<std::string, std::string>& run);

struct InitReport {
  std::string source;      ///< "Hugging Face folder gpt2", "checkpoint runs/x/checkpoints/step-00000500"
  std::int64_t numel = 0;  ///< of the whole model
  double ms = 0;
  std::shared_ptr<const HfTokenizer> tokenizer;  ///< on rank 0, where the source has one: for SaveState
};

/// Gives every parameter of the model (ignored ones too, in the type that they have) its value from a Hugging Face
/// folder (one with config.json) or from a checkpoint (or a run's folder: its newest), by name and nothing else: no
/// optimizer state, no step; and buffers, where a checkpoint has them. Of a Hugging Face folder rank 0 reads the headers
/// and each rank its own pieces (replicas read units in turns, and send them to one another); of a checkpoint each block
/// is read and verified by one rank, as load() does it. Memory: less than 150 MiB a rank beside the model.
/// @param model  the run's keys of [model], as check_model_keys() takes them.
/// @param root  initialised, between passes.
/// @throws ConfigError naming the keys and both values, or the parameter; CheckpointError: a damaged or unfit source. The
///         same on all ranks. The model's values are undefined then. @collective over `comm`: all ranks of the mesh.
InitReport init_from(const std::string& path, const std::map<std::string, std::string>& model, fsdp::Root& root,
                     const HostComm& comm);

}  // namespace mica::checkpoint
