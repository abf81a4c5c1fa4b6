// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

namespace mica::plan {

struct HardwareFile {
  std::string_view name;  ///< "h100-80"
  std::string_view text;
};

#include "hardware_files.inc"  // made by CMake from hardware/*.json: kHardwareFiles

}  // namespace mica::plan
