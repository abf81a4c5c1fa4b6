// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mica::plan {

/// A JSON file of src/plan, compiled into the library.
struct EmbeddedFile {
  std::string_view name;  ///< "h100-80"
  std::string_view text;
};

#include "hardware_files.inc"  // made by CMake from hardware/*.json: kHardwareFiles
#include "software_files.inc"  // and from software/*.json: kSoftwareFiles

[[nodiscard]] std::vector<std::string> names_of(std::span<const EmbeddedFile> files);
/// The text of the embedded file of that name; empty: there is none.
[[nodiscard]] std::string_view text_of(std::span<const EmbeddedFile> files, std::string_view name);
/// The text of the embedded file of that name, or of a user's file.
/// @param option  "--hardware"  @param hint  the end of the message when there is neither  @throws ConfigError
[[nodiscard]] std::string read_embedded_or_file(std::span<const EmbeddedFile> files, const std::string& name_or_file,
                                                std::string_view option, std::string_view hint = "");

}  // namespace mica::plan
