// SPDX-License-Identifier: Apache-2.0
// A safetensors header: any text is read or refused; tensors that are accepted lie inside the file.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "mica/core/error.hpp"
#include "mica/io/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  // The first two bytes say how much data follows the header.
  const std::int64_t data_bytes = data[0] + 256 * data[1];
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::int64_t file_bytes = 8 + static_cast<std::int64_t>(text.size()) + data_bytes;
  try {
    const auto header = mica::io::parse_safetensors_header(text, file_bytes, "model.safetensors");
    for (const auto& tensor : header.tensors) {
      mica::invariant(tensor.offset >= 0 && tensor.bytes >= 0 && tensor.offset <= file_bytes - tensor.bytes,
                      "a tensor lies inside its file");
    }
  } catch (const mica::CheckpointError&) {
  }
  return 0;
}
