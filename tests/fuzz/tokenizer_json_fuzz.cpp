// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: any text is read or refused; what is read encodes text to ids that decode to it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mica/core/error.hpp"
#include "mica/data/tokenizer_json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = mica::data::parse_tokenizer_json(text, "tokenizer.json");
    // The file itself is as good a text as any.
    std::vector<std::int32_t> ids;
    tokenizer->encode(text, ids);
    for (const std::int32_t id : ids) {
      mica::invariant(id >= 0 && id < tokenizer->vocab_size(), "ids are below vocab_size");
    }
    (void)tokenizer->decode(ids);
    std::vector<std::int32_t> part_ids;
    const std::size_t sure = tokenizer->encode_part(text, {true, false}, part_ids);
    mica::invariant(sure <= size, "a part is no longer than its text");
    (void)tokenizer->encode_part(text.substr(sure), {false, true}, part_ids);
    mica::invariant(part_ids == ids, "parts give the ids of the whole");
  } catch (const mica::ConfigError&) {
  }
  return 0;
}
