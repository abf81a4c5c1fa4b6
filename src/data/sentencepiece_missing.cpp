// SPDX-License-Identifier: Apache-2.0
// Built instead of sentencepiece_tokenizer.cpp with MICA_WITH_SENTENCEPIECE=OFF.

#include "mica/core/error.hpp"

#include "sentencepiece.hpp"

namespace mica::data {

std::string sentencepiece_support() { return "no SentencePiece: built with MICA_WITH_SENTENCEPIECE=OFF"; }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view, const std::string& path) {
  throw ConfigError(
      fmt::format("{}: this Mica was built without SentencePiece (MICA_WITH_SENTENCEPIECE=OFF): build it with that library, "
                  "or use the model's tokenizer.json",
                  path));
}

}  // namespace mica::data
