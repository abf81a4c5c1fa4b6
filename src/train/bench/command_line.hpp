#pragma once

// Private to mica-bench: one subcommand's flags.

#include <boost/program_options.hpp>

#include "benches.hpp"

namespace mica::train::bench {

namespace po = boost::program_options;

/// Reads `arguments` into the variables that `flags` names. @param help  printed by rank 0 for --help, before the flags.
/// @returns false if --help was asked for. @throws SharedError for an unknown flag or a bad value.
[[nodiscard]] bool parse_flags(const App& app, const Arguments& arguments, const char* help, po::options_description& flags);

/// "1,16,64" -> numbers >= 1. @throws ConfigError naming the flag.
[[nodiscard]] std::vector<std::int64_t> parse_numbers(const std::string& flag, const std::string& text);

}  // namespace mica::train::bench
