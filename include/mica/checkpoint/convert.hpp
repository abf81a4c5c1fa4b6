// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "mica/core/dtype.hpp"
#include "mica/core/error.hpp"

namespace mica::checkpoint {

/// The program mica-convert, without its main(). @param arguments  of the command line, without the program's name.
/// @param out  for the report. @param progress  where a progress bar may be drawn; null: nowhere.
/// @throws ConfigError for misuse and for input that cannot be converted, CheckpointError for damaged or inconsistent input,
/// IoError (a full disk). No output is left behind then.
ExitCode run_convert(const std::vector<std::string>& arguments, std::ostream& out, std::ostream* progress);

/// Help of a command, if the first argument names one; else of the program.
[[nodiscard]] std::string convert_help(const std::vector<std::string>& arguments);

/// Elements of a matrix in memory while it is transposed; two such panels: 2 x 32 MiB.
inline constexpr std::int64_t kPanelNumel = std::int64_t{8} << 20;

struct ConvertOptions {
  bool is_dry_run = false;                                   ///< check everything, write nothing
  std::function<void(std::int64_t, std::int64_t)> progress;  ///< elements done and total; may be empty
  std::int64_t panel_numel = kPanelNumel;                    ///< tests use fewer
};

struct HfExportOptions {
  DType dtype = DType::f32;                      ///< of the files: f32, bf16 or f16
  std::int64_t max_shard_bytes = 5'000'000'000;  ///< of the tensors in one file; a larger tensor gets its own file
  /// Hugging Face folder from which to copy the tokenizer files and special token ids; empty: use those of the checkpoint.
  std::string tokenizer;
};

/// What was written, or would be.
struct ConvertReport {
  std::string model_type;  ///< "gpt2"
  std::int64_t num_tensors = 0, numel = 0, bytes = 0, num_files = 0;
  std::vector<std::string> warnings;  ///< export: what its user should know; a dry run reads no values, so it finds no NaN
  std::string config;                 ///< import: the section [model] of a config for it
  std::string tokenizer;              ///< import or export: one line saying which tokenizer files were copied, or that none were
};

/// Writes a checkpoint's parameters as a Hugging Face folder: config.json and model.safetensors, or several files and
/// model.safetensors.index.json; the tokenizer's files and generation_config.json, if known; and checksums.crc32c, for verify.
/// Memory: less than 100 MiB and the tokenizer's files, for any model size. The folder appears complete or not at all.
/// @param checkpoint  resolved (folder.hpp).  @param hf_folder  must not exist.
/// @throws ConfigError: a model without a counterpart, a value outside fp16's range; CheckpointError; IoError.
ConvertReport hf_export(const std::string& checkpoint, const std::string& hf_folder, const HfExportOptions& hf,
                        const ConvertOptions& options);

/// Writes a Hugging Face folder's parameters as a checkpoint of one rank at step 0, without optimizer state, for
/// model.init_from, hf_export and all other readers. Memory: less than 150 MiB and the tokenizer's files, for any model size.
/// @param checkpoint  must not exist; appears complete or not at all.
/// @throws ConfigError: a setting that Mica's model does not have; CheckpointError: files that are damaged or do not fit config.json.
ConvertReport hf_import(const std::string& hf_folder, const std::string& checkpoint, const ConvertOptions& options);

/// Rewrites a checkpoint as `num_ranks` ranks would have written it: parameters and optimizer state bit for bit. Memory: a few
/// blocks.
/// @param out  must not exist.  @param sharding  "flat", "per_parameter" (by rows), or "" to keep the checkpoint's.
/// @throws ConfigError: a dim that cannot be divided over that many ranks; DamagedCheckpointError; IoError.
ConvertReport reshard(const std::string& checkpoint, const std::string& out, int num_ranks, const std::string& sharding,
                      const ConvertOptions& options);

/// Writes one HDF5 file without virtual datasets: every parameter, /<full name>, and its optimizer state,
/// /optim/<kind>/<full name>; and `out`.crc32c, for verify. Memory: a few blocks. @param out  must not exist. @throws ConfigError,
/// DamagedCheckpointError, IoError.
ConvertReport consolidate(const std::string& checkpoint, const std::string& out, bool with_optimizer, const ConvertOptions& options);

}  // namespace mica::checkpoint
