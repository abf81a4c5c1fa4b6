// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "mica/checkpoint/diff.hpp"
#include "mica/checkpoint/manifest.hpp"
#include "mica/checkpoint/verify.hpp"
#include "mica/comm/hang_report.hpp"
#include "mica/core/error.hpp"

namespace mica::checkpoint {

/// The program mica-inspect, without its main(). @param arguments  of the command line, without the program's name.
/// @param out  for the result. @param progress  where a progress line may be drawn; null: nowhere.
/// @returns done, or differs: `diff` found a difference, `verify` damage.
/// @throws ConfigError for misuse; CheckpointError for a checkpoint that cannot be read.
ExitCode run_inspect(const std::vector<std::string>& arguments, std::ostream& out, std::ostream* progress);

[[nodiscard]] std::string inspect_help(const std::vector<std::string>& arguments);
/// One line with the checkpoint format, the HDF5 version and how CRC-32C is computed.
[[nodiscard]] std::string build_text();

/// For people: step, config, mesh, units, parameters, bytes.
[[nodiscard]] std::string summary_text(const std::string& folder, const Manifest& manifest);
/// The same as one JSON object.
[[nodiscard]] std::string summary_json(const std::string& folder, const Manifest& manifest);
/// One line per difference, and a last line with the counts.
[[nodiscard]] std::string diff_text(const DiffReport& report);
[[nodiscard]] std::string diff_json(const DiffReport& report);
[[nodiscard]] std::string verify_text(const std::string& folder, const VerifyReport& report);
[[nodiscard]] std::string verify_json(const std::string& folder, const VerifyReport& report);
/// @param folder  the folder of the records
[[nodiscard]] std::string hang_json(const std::string& folder, const HangScene& scene);

}  // namespace mica::checkpoint
