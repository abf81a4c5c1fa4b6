// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to mica-bench: one subcommand's flags.

#include <boost/program_options.hpp>

#include "benches.hpp"

namespace mica::train::bench {

namespace po = boost::program_options;

/// Reads `arguments` into the variables that `flags` names. @throws ConfigError on all
/// ranks for an unknown flag or a bad value.
void read_flags(const App& app, const Arguments& arguments, const po::options_description& flags);

[[nodiscard]] std::string help_text(const char* introduction, const po::options_description& flags);

/// "1,16,64" -> numbers >= 1. @throws ConfigError naming the flag.
[[nodiscard]] std::vector<std::int64_t> parse_numbers(const std::string& flag, const std::string& text);

}  // namespace mica::train::bench
