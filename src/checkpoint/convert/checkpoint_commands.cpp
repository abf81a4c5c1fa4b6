#include <charconv>
#include <ostream>

#include "mica/checkpoint/convert.hpp"
#include "mica/checkpoint/folder.hpp"

#include "../figures.hpp"
#include "../progress_line.hpp"
#include "subcommand.hpp"

namespace mica::checkpoint {
namespace {

constexpr std::string_view kReshardHelp = R"(Writes the same checkpoint as another number of ranks would have written it: parameters and optimizer state keep every bit.
A run needs no such step, since mica-train resumes on any mesh; it saves time where many ranks read at once, and it turns a
checkpoint of many small files into few.

  --ranks=N                   shard files of the new checkpoint
  --sharding=flat|per_parameter   how parameters are cut; as they were if left out
)";

constexpr std::string_view kConsolidateHelp = R"(Writes one ordinary HDF5 file: every parameter under its full name with its shape, float32, and the optimizer's state under
/optim/KIND. There are no virtual datasets in it, so it can be copied alone (model.h5 in the checkpoint itself needs the shard
files beside it). OUT.h5.crc32c beside it holds its checksum: mica-inspect verify OUT.h5 compares.

  import h5py
  weight = h5py.File("OUT.h5")["transformer.wte.weight"][:]

  --optimizer=true|false      false leaves the optimizer's state out
)";

void print_report(const ConvertCall& call, const ConvertReport& report) {
  call.out << fmt::format("{} {}, {} in {}: {}\n", call.is_dry_run ? "would write" : "wrote",
                          count_text(report.num_tensors, "array"), bytes_text(report.bytes), count_text(report.num_files, "file"),
                          call.paths[1]);
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
                                 .summary = "the same checkpoint as another number of ranks would have written it",
                                 .help = kReshardHelp,
                                 .num_paths = 2,
                                 .options = {"ranks", "sharding"},
                                 .run = run_reshard};

const Subcommand kConsolidateCommand{.name = "consolidate",
                                     .synopsis = "CHECKPOINT OUT.h5 [--optimizer=true|false]",
                                     .summary = "one ordinary HDF5 file with every parameter whole",
                                     .help = kConsolidateHelp,
                                     .num_paths = 2,
                                     .options = {"optimizer"},
                                     .run = run_consolidate};

}  // namespace mica::checkpoint
