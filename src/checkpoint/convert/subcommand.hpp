// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "mica/core/error.hpp"

namespace mica::checkpoint {

/// A parsed command line of mica-convert.
struct ConvertCall {
  std::vector<std::string> paths;
  std::map<std::string, std::string> options;  ///< those given: "dtype" -> "bf16"
  bool is_dry_run = false;
  std::ostream& out;
  std::ostream* progress;  ///< null: no progress bar

  [[nodiscard]] std::string option(const std::string& name, const std::string& otherwise) const {
    const auto found = options.find(name);
    return found == options.end() ? otherwise : found->second;
  }
};

/// One of mica-convert's commands. To add one, add it to kSubcommands in run_convert.cpp.
struct Subcommand {
  std::string_view name;      ///< "hf-export"
  std::string_view synopsis;  ///< "CHECKPOINT HF_FOLDER [--dtype=fp32|bf16|fp16]"
  std::string_view summary;   ///< one line for the list of commands
  std::string_view help;      ///< paragraphs for `mica-convert NAME --help`
  std::size_t num_paths;
  std::vector<std::string_view> options;  ///< names of --NAME=VALUE; every command has --dry-run and --quiet
  ExitCode (*run)(const ConvertCall& call);
};

extern const Subcommand kHfExportCommand;
extern const Subcommand kHfImportCommand;
extern const Subcommand kReshardCommand;
extern const Subcommand kConsolidateCommand;

/// "200MB", "5GB", "1GiB", "4096": bytes. @throws ConfigError naming the option.
[[nodiscard]] std::int64_t parse_bytes(std::string_view option, const std::string& text);

}  // namespace mica::checkpoint
