// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "mica/nn/models/llama.hpp"
#include "mica/train/config.hpp"

namespace mica::train {

/// The section [model] as a LlamaConfig; intermediate_size = 0 becomes 4 * width.
[[nodiscard]] nn::LlamaConfig llama_config(const Config::Model& model);

/// The model that the section names, without storage. @throws ConfigError
[[nodiscard]] std::unique_ptr<nn::Module> make_model(const Config::Model& model);

/// Checks what can be refused before the model is made: sizes that do not fit each other or train.seq_len, keys of another
/// architecture, sizes too large for any machine. @throws ConfigError
void check_model(const Config& config);

}  // namespace mica::train
