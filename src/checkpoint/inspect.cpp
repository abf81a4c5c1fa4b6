// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/inspect.hpp"

#include <chrono>
#include <filesystem>
#include <ostream>

#include "mica/checkpoint/folder.hpp"
#include "mica/comm/hang_folder.hpp"
#include "mica/data/token_file.hpp"
#include "mica/io/crc32c.hpp"
#include "mica/io/hdf5.hpp"
#include "mica/io/raw_file.hpp"

#include "checksum_list.hpp"
#include "progress_line.hpp"

namespace mica::checkpoint {
namespace {

constexpr std::string_view kHelp =
    R"(mica-inspect CHECKPOINT              prints step, other checkpoints and why they are kept, data, config, mesh, units
mica-inspect RUN --follow            shows a run while it trains: step, loss, tokens/s, time left, and the rank that the others wait for
mica-inspect verify CHECKPOINT       checks every byte against its checksum; also of files and folders made by mica-convert, and of token files
mica-inspect diff A B                compares two checkpoints, or a checkpoint and a Hugging Face folder
mica-inspect hang RUN                prints why a run hung: which rank was lost or waited for

CHECKPOINT is a folder such as runs/x/checkpoints/step-00000500; a run's folder (runs/x) means its newest checkpoint.

  verify   Reads every byte and compares it with the checksums in manifest.json. Names each damaged file, dataset and byte
           range. For a consolidated file or an exported Hugging Face folder, the checksums are in FILE.crc32c or
           FOLDER/checksums.crc32c; a token file of mica-tokenize holds that of its tokens.
  diff     For each parameter and each kind of optimizer state: equal bits, or how many elements differ and the largest
           |A-B|. A and B may have been written by different numbers of ranks. If A or B is a Hugging Face folder (with
           config.json), only parameters are compared, under Mica's names.
  hang     Reads the records in RUN/hang, which ranks write when a collective exceeds mesh.timeout or a rank dies, and prints the
           report again: the causes, then what each rank was doing. If the run hung several times, shows the last.
  --follow Reads the run's files, on any machine that sees its folder, such as a login node. On a terminal, updates one line in place;
           in a pipe, prints a line per measurement (train.log_interval steps). Ends when the job ends or dies (on another host: has written
           nothing for 60 s), or on Ctrl-C.
  --json   One JSON object instead of text.
  -h, --help, --version

Examples
  mica-inspect runs/shakespeare
  mica-inspect verify runs/shakespeare/checkpoints/step-00000500
  mica-inspect runs/shakespeare --follow
  mica-inspect diff runs/two-ranks runs/four-ranks && echo same
  mica-inspect diff runs/shakespeare exported/

The files are ordinary HDF5. model.h5 is the whole model for h5py, h5dump and MATLAB: every parameter under its name, optimizer
state under /optim, whatever the number of ranks. In shard-*.h5, /units/N/master is a rank's part of unit N (float32), and the
table /pieces says which elements of which parameter are where.
Exit status: 0 done; 1 damaged (verify) or different (diff); 2 an error in the command, or a checkpoint that cannot be read;
3 a failure at run time.
)";

struct Command {
  std::string name = "show";  // or "verify", "diff", "hang"
  std::vector<std::string> paths;
  bool as_json = false;
};

/// Whether the path is an output of mica-convert with a checksum list.
bool has_checksum_list(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(checksum_list_path(path), error);
}

/// Whether the path is a file with tokens, of mica-tokenize or of another program.
bool is_token_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  try {
    return io::Hdf5File::open(path).exists(data::kTokensDataset);
  } catch (const Hdf5Error&) {  // no HDF5 file
    return false;
  }
}

/// Whether `verify` takes the path for an output of mica-convert or a token file. A link to such a file becomes the file's path.
/// @throws ConfigError for any other file
bool finds_checksums(std::string& path) {
  std::error_code error;
  if (has_checksum_list(path)) return true;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  const std::string target = std::filesystem::canonical(path, error).string();
  if (has_checksum_list(target)) path = target;
  require<ConfigError>(has_checksum_list(path) || is_token_file(path),
                       "{}: there is no {}, and it is no token file of mica-tokenize, so nothing can be verified", path,
                       checksum_list_path(path));
  return true;
}

VerifyReport verify_token_file(const std::string& path, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const auto begin = std::chrono::steady_clock::now();
  const auto file = data::TokenFile::open(path);
  require<ConfigError>(file.recorded_checksum().has_value(),
                       "{}: holds no checksum ({}), so nothing can be verified; token files of mica-tokenize hold one", path,
                       data::kTokensChecksumAttribute);
  VerifyReport report;
  try {
    io::RawFile::open_for_reading(path).drop_cache();  // checks the disk, not a copy in memory
    const std::uint32_t found = file.compute_checksum([&](std::int64_t bytes) {
      report.bytes += bytes;
      progress(report.bytes, file.num_tokens() * file.token_bytes());
    });
    require<IoError>(found == *file.recorded_checksum(),
                     "{}: is damaged: its tokens do not match the checksum that it holds; copy or make it again", path);
  } catch (const IoError& error) {  // damaged, shrunk, unreadable
    report.damage.emplace_back(error.what());
  }
  report.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

Command parse(const std::vector<std::string>& arguments) {
  Command command;
  for (const std::string& argument : arguments) {
    if (argument == "--json") {
      command.as_json = true;
    } else {
      require<ConfigError>(!argument.starts_with("-"), "unknown option {}; see mica-inspect --help", argument);
      command.paths.push_back(argument);
    }
  }
  if (!command.paths.empty() && (command.paths[0] == "verify" || command.paths[0] == "diff" || command.paths[0] == "hang")) {
    command.name = command.paths[0];
    command.paths.erase(command.paths.begin());
  }
  require<ConfigError>(command.name != "show" || command.paths.size() < 2,
                       "unknown command '{}', expected verify, diff or hang; see mica-inspect --help",
                       command.paths.empty() ? "" : command.paths[0]);
  const std::size_t num_expected = command.name == "diff" ? 2 : 1;
  require<ConfigError>(command.paths.size() == num_expected, "mica-inspect {} takes {}, got {}; see mica-inspect --help",
                       command.name == "show" ? "CHECKPOINT" : command.name,
                       command.name == "hang" ? "one run folder"
                       : num_expected == 1    ? "one checkpoint"
                                              : "two checkpoints",
                       command.paths.size());
  if (command.name == "hang") return command;
  if (command.name == "diff") return command;  // either may be a Hugging Face folder
  if (command.name == "verify" && finds_checksums(command.paths[0])) return command;
  for (std::string& path : command.paths) path = resolve_checkpoint(path);
  return command;
}

ExitCode show(const Command& command, std::ostream& out) {
  const std::string& folder = command.paths[0];
  const Manifest manifest = read_manifest(folder);
  out << (command.as_json ? summary_json(folder, manifest) : summary_text(folder, manifest));
  return ExitCode::done;
}

ExitCode run_verify(const Command& command, std::ostream& out, std::ostream* progress) {
  const std::string& folder = command.paths[0];
  VerifyReport report;
  {
    ProgressLine line(progress, "verifying");
    const auto draw = [&](std::int64_t done, std::int64_t total) { line.draw(done, total); };
    report = has_checksum_list(folder) ? verify_checksum_list(checksum_list_path(folder), draw)
             : is_token_file(folder)   ? verify_token_file(folder, draw)
                                       : verify(folder, draw);
  }
  out << (command.as_json ? verify_json(folder, report) : verify_text(folder, report));
  return report.damage.empty() ? ExitCode::done : ExitCode::differs;
}

ExitCode run_diff(const Command& command, std::ostream& out, std::ostream* progress) {
  DiffReport report;
  {
    ProgressLine line(progress, "comparing");
    report = diff(command.paths[0], command.paths[1], [&](std::int64_t done, std::int64_t total) { line.draw(done, total); });
  }
  if (!command.as_json) out << fmt::format("A: {}\nB: {}\n", command.paths[0], command.paths[1]);
  out << (command.as_json ? diff_json(report) : diff_text(report));
  return report.is_equal() ? ExitCode::done : ExitCode::differs;
}

ExitCode show_hang(const Command& command, std::ostream& out) {
  const HangFolder folder = HangFolder::newest(command.paths[0]);
  const HangScene scene = folder.read();
  out << (command.as_json ? hang_json(folder.path(), scene) : fmt::format("{}\n{}", folder.path(), hang_report(scene)));
  return ExitCode::done;
}

}  // namespace

std::string inspect_help(const std::vector<std::string>& /*arguments*/) { return std::string(kHelp); }

std::string build_text() {
  return fmt::format("  checkpoint format {}, HDF5 {}, CRC-32C by {}\n", kFormatVersion, io::hdf5_version(),
                     io::crc32c_is_hardware() ? "instruction" : "tables");
}

ExitCode run_inspect(const std::vector<std::string>& arguments, std::ostream& out, std::ostream* progress) {
  const Command command = parse(arguments);
  if (command.name == "verify") return run_verify(command, out, progress);
  if (command.name == "diff") return run_diff(command, out, progress);
  if (command.name == "hang") return show_hang(command, out);
  return show(command, out);
}

}  // namespace mica::checkpoint
