// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <ostream>

#include "mica/checkpoint/convert.hpp"
#include "mica/checkpoint/folder.hpp"

#include "../figures.hpp"
#include "../progress_line.hpp"
#include "subcommand.hpp"

namespace mica::checkpoint {
namespace {

constexpr std::string_view kReshardHelp =
    R"(Rewrites a checkpoint for another number of ranks; parameters and optimizer state keep every bit. Resuming does not need it,
since mica-train resumes on any mesh; it saves time if many ranks read at once, or if a checkpoint has many small files.

  --ranks=N                       number of shard files of the new checkpoint
  --sharding=flat|per_parameter   how parameters are sharded; default: as before
)";

constexpr std::string_view kConsolidateHelp =
    R"(Writes one ordinary HDF5 file with every parameter under its full name and the optimizer state under /optim/KIND, in the dtypes of
the checkpoint: float32, but for ignored parameters, buffers and state below fp32 (docs/files.md). It has no virtual datasets, so it can
be copied by itself, while model.h5 in a checkpoint needs the shard files beside it. Its checksum is in OUT.h5.crc32c; mica-inspect
verify OUT.h5 checks it.

  import h5py
  weight = h5py.File("OUT.h5")["transformer.wte.weight"][:]

  --optimizer=true|false      false leaves out the optimizer state
)";

void print_report(const ConvertCall& call, const ConvertReport& report) {
  call.out << fmt::format("{} {}, {} in {}: {}\n", call.is_dry_run ? "would write" : "wrote", count_text(report.num_tensors, "array"),
                          bytes_text(report.bytes), count_text(report.num_files, "file"), call.paths[1]);
}

template <class Convert>
ExitCode run_command(const ConvertCall& call, const char* doing, Convert convert) {
  ConvertOptions options;
  options.is_dry_run = call.is_dry_run;
  ConvertReport report;
  {
    ProgressLine line(call.progress, doing);
    options.progress = [&](std::int64_t done, std::int64_t total) { line.draw(done, total); };
    report = convert(resolve_checkpoint(call.paths[0]), options);
  }
  print_report(call, report);
  return ExitCode::done;
}

ExitCode run_reshard(const ConvertCall& call) {
  const std::string text = call.option("ranks", "");
  int num_ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), num_ranks);
  require<ConfigError>(error == std::errc{} && end == text.data() + text.size() && num_ranks >= 1 && num_ranks <= 1'000'000,
                       "--ranks is '{}', expected the number of shard files of the new checkpoint: --ranks=4", text);
  const std::string sharding = call.option("sharding", "");
  require<ConfigError>(sharding.empty() || sharding == "flat" || sharding == "per_parameter",
                       "--sharding is '{}', expected flat or per_parameter", sharding);
  return run_command(call, "resharding", [&](const std::string& checkpoint, const ConvertOptions& options) {
    return reshard(checkpoint, call.paths[1], num_ranks, sharding, options);
  });
}

ExitCode run_consolidate(const ConvertCall& call) {
  const std::string with = call.option("optimizer", "true");
  require<ConfigError>(with == "true" || with == "false", "--optimizer is '{}', expected true or false", with);
  return run_command(call, "consolidating", [&](const std::string& checkpoint, const ConvertOptions& options) {
    return consolidate(checkpoint, call.paths[1], with == "true", options);
  });
}

}  // namespace

const Subcommand kReshardCommand{.name = "reshard",
                                 .synopsis = "CHECKPOINT OUT --ranks=N [--sharding=flat|per_parameter]",
                                 .summary = "rewrites a checkpoint for another number of ranks",
                                 .help = kReshardHelp,
                                 .num_paths = 2,
                                 .options = {"ranks", "sharding"},
                                 .run = run_reshard};

const Subcommand kConsolidateCommand{.name = "consolidate",
                                     .synopsis = "CHECKPOINT OUT.h5 [--optimizer=true|false]",
                                     .summary = "writes one ordinary HDF5 file with the whole model",
                                     .help = kConsolidateHelp,
                                     .num_paths = 2,
                                     .options = {"optimizer"},
                                     .run = run_consolidate};

}  // namespace mica::checkpoint
