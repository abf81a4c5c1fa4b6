// SPDX-License-Identifier: Apache-2.0
// Built instead of sentencepiece_tokenizer.cpp where CMake did not find libsentencepiece.

#include "mica/core/error.hpp"

#include "sentencepiece.hpp"

namespace mica::data {

std::string sentencepiece_support() { return "no SentencePiece: libsentencepiece-dev was missing when Mica was built"; }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view, const std::string& path) {
  throw ConfigError(
      fmt::format("{}: this Mica was built without SentencePiece; install libsentencepiece-dev (Debian) and configure and "
                  "build again, or use the model's tokenizer.json",
                  path));
}

}  // namespace mica::data
