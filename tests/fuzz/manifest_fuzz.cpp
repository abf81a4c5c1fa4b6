// SPDX-License-Identifier: Apache-2.0
// A checkpoint's manifest, behind its checksum: with a checksum that fits, any text is read or refused.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "mica/checkpoint/manifest.hpp"
#include "mica/core/error.hpp"
#include "mica/io/crc32c.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto checksum = mica::io::crc32c(body.data(), static_cast<std::int64_t>(size));
  const std::string text = fmt::format("{},\n \"manifest_crc32c\": \"{:08x}\"\n}}\n", body, checksum);
  try {
    const auto manifest = mica::checkpoint::parse_manifest(text, "manifest.json");
    const std::string written = mica::checkpoint::manifest_text(manifest);
    mica::invariant(mica::checkpoint::manifest_text(mica::checkpoint::parse_manifest(written, "again")) == written,
                    "a written manifest reads back");
  } catch (const mica::CheckpointError&) {
  }
  return 0;
}
