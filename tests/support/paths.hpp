// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace mica::test {

/// The folder of Mica's sources.
std::string source_folder();
/// The folder of the built programs.
std::string program_folder();
/// Data made by other software: tests/reference/NAME.
std::string reference_path(const std::string& name);

}  // namespace mica::test
