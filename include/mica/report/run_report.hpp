// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "mica/core/error.hpp"

namespace mica::report {

/// The program mica-report, without its main(). @param arguments  of the command line, without the program's name.
/// @param out  receives its messages. @throws ConfigError for wrong arguments and for folders without a run; IoError
ExitCode run_report(const std::vector<std::string>& arguments, std::ostream& out);

[[nodiscard]] std::string report_help(const std::vector<std::string>& arguments);
/// One line about the plotting library.
[[nodiscard]] std::string report_build_text();

}  // namespace mica::report
