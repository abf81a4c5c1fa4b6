// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to data: SentencePiece models, in builds with MICA_WITH_SENTENCEPIECE.

#include <memory>
#include <string>
#include <string_view>

#include "mica/data/tokenizer.hpp"

namespace mica::data {

/// "SentencePiece 0.1.97", or what is missing.
[[nodiscard]] std::string sentencepiece_support();

/// @param model  the content of a .model file.   @param path  for error texts; its last part is the name.
/// @throws ConfigError also in a build without libsentencepiece.
[[nodiscard]] std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view model, const std::string& path);

}  // namespace mica::data
