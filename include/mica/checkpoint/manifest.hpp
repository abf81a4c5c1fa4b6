// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mica/checkpoint/hf_tokenizer.hpp"
#include "mica/checkpoint/retention.hpp"
#include "mica/core/dtype.hpp"
#include "mica/core/error.hpp"
#include "mica/fsdp/shard_layout.hpp"

namespace mica::checkpoint {

/// The version that is written. History: 3 is the oldest that can be read; 4 added parent, began_from, global_batch, sequences and
/// data; 5 added tokenizer and renamed model.hidden to model.intermediate_size. Newer files of format 5 have
/// val_loss, val_data, diverged, retention and state_dtypes.
inline constexpr std::int64_t kFormatVersion = 5;
inline constexpr std::int64_t kOldestFormatVersion = 3;
/// Data is checked in blocks of this many bytes, counted from the start of each dataset.
inline constexpr std::int64_t kBlockBytes = std::int64_t{4} << 20;
inline constexpr std::string_view kManifestName = "manifest.json";
/// The whole model for other programs: virtual datasets over the shard files.
inline constexpr std::string_view kModelIndexName = "model.h5";
/// The kind of the parameters; other kinds are optimizer state ("exp_avg").
inline constexpr std::string_view kMasterKind = "master";

/// One dataset of a shard file: a rank's whole shard of one unit and kind, contiguous in the file.
struct DatasetEntry {
  std::string path;         ///< "/units/3/exp_avg"
  std::int64_t unit = 0;    ///< index into Manifest::units
  std::string kind;         ///< "master", "exp_avg", ...
  std::int64_t offset = 0;  ///< of its first byte in the file
  std::int64_t bytes = 0;
  std::vector<std::uint32_t> block_crcs;  ///< CRC-32C of each block; the last block may be shorter
  DType dtype = DType::f32;               ///< of its elements, Manifest::dtype_of()

  [[nodiscard]] std::int64_t numel() const { return bytes / dtype_bytes(dtype); }
  [[nodiscard]] std::int64_t num_blocks() const { return static_cast<std::int64_t>(block_crcs.size()); }
  [[nodiscard]] std::int64_t block_bytes(std::int64_t block) const {
    return bytes - block * kBlockBytes < kBlockBytes ? bytes - block * kBlockBytes : kBlockBytes;
  }
};

struct FileEntry {
  std::string name;  ///< a bare name in the checkpoint's folder
  int shard_rank = 0;
  std::int64_t bytes = 0;
  std::uint32_t rest_crc = 0;  ///< CRC-32C of all bytes outside the datasets, in file order: HDF5's metadata and the tables
  std::vector<DatasetEntry> datasets;
};

/// An FSDP unit is sharded as a whole. Each tensor that is whole on every rank has an entry of its own.
enum class UnitRole : std::uint8_t {
  unit,     ///< FSDP unit
  ignored,  ///< ignored parameter ([Note: ignored parameters], fsdp/ignored.hpp)
  buffer,   ///< module buffer, without optimizer state
};
/// "unit", "ignored", "buffer"
[[nodiscard]] std::string_view unit_role_name(UnitRole role);

struct UnitEntry {
  std::string name;
  int shard_size = 1;            ///< 1: not sharded, only in shard_rank 0's file
  std::int64_t shard_numel = 0;  ///< P
  std::vector<fsdp::ParameterSpec> parameters;
  std::string layout = "flat";  ///< ShardLayout::name(): how the parameters are cut
  UnitRole role = UnitRole::unit;
  DType dtype = DType::f32;  ///< of the parameters; other than f32 only for whole tensors

  [[nodiscard]] bool is_whole() const { return role != UnitRole::unit; }
};

/// HfTokenizer without the files' contents.
struct TokenizerEntry {
  std::string source;
  TokenIds token_ids;
  std::vector<FileEntry> files;  ///< without datasets
};

/// Identifies a checkpoint uniquely: no two launches have the same run id.
struct CheckpointId {
  std::string run_id;  ///< of the launch that wrote it
  std::int64_t step = 0;

  friend bool operator==(const CheckpointId&, const CheckpointId&) = default;
};

/// The description of a checkpoint. [Note: checkpoint on disk]
/// A checkpoint is the folder RUN/checkpoints/step-00000500 with one HDF5 file per shard rank, model.h5, the tokenizer's files if
/// the model came with any, and this manifest. The manifest has checksums for every byte of the folder: one CRC-32C per 4 MiB block of
/// each dataset, and one for the rest of each file (HDF5's own metadata and the tables; the whole file if it has no datasets). It ends
/// with a CRC of its own text.
/// The folder is written under another name (.tmp), synced, and renamed last: it is complete or invisible.
struct Manifest {
  std::string mica_version;
  std::string run_id;
  std::int64_t step = 0;
  std::optional<CheckpointId> parent;  ///< the checkpoint before this one; none: the run began with initial parameters
  /// If a launch resumed from a checkpoint other than the newest of the run's folder: its checkpoint.resume, as a canonical
  /// path. Empty: none did.
  std::string began_from;
  std::int64_t tokens = 0;        ///< seen so far
  std::int64_t global_batch = 0;  ///< sequences of a step; 0: not recorded (format 3)
  std::int64_t sequences = 0;     ///< seen so far, which is the index of the next step's first one; 0 in format 3
  std::string data;               ///< identifies the training data, TokenDataset::fingerprint(); empty: not recorded
  std::uint64_t seed = 0;

  [[nodiscard]] CheckpointId id() const { return {run_id, step}; }

  int world_size = 1, shard_size = 1, replicas = 1;
  std::string strategy;
  std::string kernels;  ///< math library and instruction set
  int omp_threads = 1;

  std::string optimizer;  ///< "adamw"; empty: none was saved
  std::int64_t optimizer_steps = 0;
  std::vector<std::string> state_kinds;
  std::vector<DType> state_dtypes;                      ///< of the kinds, in their order; empty: f32
  std::map<std::string, std::int64_t> parameter_steps;  ///< of parameters whose count differs from optimizer_steps

  std::map<std::string, double> scalars;  ///< other state of the run, by name: "loss_scale"
  std::optional<double> val_loss;         ///< after this step, if evaluated; never infinite or NaN
  std::string val_data;                   ///< what val_loss was measured on: tokens and sequences; empty: not recorded
  bool diverged = false;                  ///< the training loss, the gradient norm or a parameter was NaN or infinite
  std::optional<Retention> retention;     ///< rules by which this save deleted older ones; none: not recorded

  std::map<std::string, std::string> model;  ///< the [model] keys of the config
  std::string config;                        ///< the resolved config file

  std::vector<UnitEntry> units;
  std::vector<FileEntry> files;  ///< shard files, in shard_rank order
  FileEntry index;               ///< model.h5: no datasets of its own
  TokenizerEntry tokenizer;      ///< of the Hugging Face folder that the model came from

  /// Of the datasets of a kind of optimizer state.
  [[nodiscard]] DType state_dtype(std::string_view kind) const;
  /// Of a unit's dataset of any kind.
  [[nodiscard]] DType dtype_of(const UnitEntry& unit, std::string_view kind) const {
    return kind == kMasterKind ? unit.dtype : state_dtype(kind);
  }
  /// Shard files, index and tokenizer files.
  [[nodiscard]] std::vector<const FileEntry*> all_files() const;
  [[nodiscard]] std::int64_t total_bytes() const;
  /// Elements of parameters, without buffers.
  [[nodiscard]] std::int64_t num_parameters() const;
};

/// The text of the file: JSON with its own checksum in the last line.
[[nodiscard]] std::string manifest_text(const Manifest& manifest);
/// The same with these shard files in place of header.files. @param files  file_entry_text() of each, in shard_rank order
[[nodiscard]] std::string manifest_text(const Manifest& header, const std::vector<std::string>& files);
/// Checks everything: checksum, syntax, types, ranges, overlaps. @param path  for error texts.
/// @throws CheckpointError naming the path and the key.
[[nodiscard]] Manifest parse_manifest(std::string_view text, const std::string& path);
/// The same without files and index, which most ranks do not need.
[[nodiscard]] Manifest parse_manifest_header(std::string_view text, const std::string& path);
/// The manifest of a checkpoint's folder. @throws CheckpointError (missing, unreadable, damaged).
[[nodiscard]] Manifest read_manifest(const std::string& checkpoint_folder);
/// The same without files and index: for callers that read no tensors.
[[nodiscard]] Manifest read_manifest_header(const std::string& checkpoint_folder);

/// Writes and fsyncs the manifest of an otherwise complete checkpoint. @returns what the text says. @throws IoError, CheckpointError (a
/// manifest that could not be read back)
Manifest write_manifest(const std::string& checkpoint_folder, const std::string& text);

/// One file's part of the manifest, as ranks send it to rank 0.
[[nodiscard]] std::string file_entry_text(const FileEntry& file);

}  // namespace mica::checkpoint
