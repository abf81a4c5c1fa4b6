// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

namespace mica::plan {

struct SoftwareFile {
  std::string_view name;  ///< "pytorch"
  std::string_view text;
};

#include "software_files.inc"  // made by CMake from software/*.json: kSoftwareFiles

}  // namespace mica::plan
