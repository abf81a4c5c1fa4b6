// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <ostream>

#include "mica/checkpoint/convert.hpp"
#include "mica/checkpoint/manifest.hpp"
#include "mica/io/hdf5.hpp"

#include "subcommand.hpp"

namespace mica::checkpoint {
namespace {

/// Every command of the program, in the order of its help.
const std::array kSubcommands = {&kHfImportCommand, &kHfExportCommand, &kReshardCommand, &kConsolidateCommand};

constexpr std::string_view kIntroduction =
    R"(mica-convert COMMAND ... converts checkpoints. It works piece by piece, so it needs little memory for any model size.

)";
constexpr std::string_view kRest = R"(
CHECKPOINT is a folder such as runs/x/checkpoints/step-00000500; as input, a run's folder (runs/x) means its newest checkpoint.
Outputs appear complete or not at all, existing ones are not overwritten, and all input is checked against its checksums.

  --dry-run    Checks everything and prints what would be written, without writing it.
  --quiet      No progress bar.
  COMMAND --help, -h, --help, --version

Examples
  mica-convert hf-import gpt2 gpt2-124m-start        then: mica-train ... --model.init_from=gpt2-124m-start
  mica-convert hf-export runs/shakespeare shakespeare-hf --dtype=bf16
  mica-convert hf-export runs/shakespeare shakespeare-hf --dry-run
  mica-convert reshard runs/shakespeare eight-files --ranks=8
  mica-convert consolidate runs/shakespeare shakespeare.h5 --optimizer=false

Exit status: 0 done; 2 an error in the command, or input that cannot be read or converted; 3 a failure while writing, e.g. a
full disk.
)";

std::string help_text() {
  std::string text(kIntroduction);
  for (const Subcommand* each : kSubcommands) text += fmt::format("  {} {}\n      {}\n", each->name, each->synopsis, each->summary);
  return text + std::string(kRest);
}

std::string command_help(const Subcommand& command) {
  return fmt::format("mica-convert {} {}\n\n{}\n  --dry-run, --quiet   See mica-convert --help.\n", command.name, command.synopsis,
                     command.help);
}

const Subcommand* find_command(const std::string& name) {
  const auto found = std::ranges::find(kSubcommands, name, &Subcommand::name);
  return found == kSubcommands.end() ? nullptr : *found;
}

[[noreturn]] void refuse_command(const std::string& name) {
  std::string known;
  for (const Subcommand* each : kSubcommands) known += fmt::format("{}{}", known.empty() ? "" : ", ", each->name);
  throw ConfigError(fmt::format("mica-convert has no command '{}'; its commands: {}; see mica-convert --help", name, known));
}

/// Takes "--dtype=bf16", if the command has that option.
void take_option(const Subcommand& command, const std::string& argument, ConvertCall& call) {
  const std::size_t equals = argument.find('=');
  const std::string name = argument.starts_with("--") ? argument.substr(2, equals == std::string::npos ? equals : equals - 2) : "";
  require<ConfigError>(std::ranges::find(command.options, name) != command.options.end(),
                       "mica-convert {} has no option {}; see mica-convert {} --help", command.name, argument, command.name);
  require<ConfigError>(equals != std::string::npos && equals + 1 < argument.size(),
                       "--{} needs a value: --{}=...; see mica-convert {} --help", name, name, command.name);
  require<ConfigError>(call.options.emplace(name, argument.substr(equals + 1)).second, "--{} is given twice", name);
}

}  // namespace

std::int64_t parse_bytes(std::string_view option, const std::string& text) {
  struct Suffix {
    std::string_view name;
    std::int64_t bytes;
  };
  constexpr Suffix kSuffixes[] = {{"", 1},          {"kB", 1'000},    {"KB", 1'000},   {"MB", 1'000'000}, {"GB", 1'000'000'000},
                                  {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  const auto known = std::ranges::find(kSuffixes, suffix, &Suffix::name);
  std::int64_t bytes = 0;
  const bool is_good =
      error == std::errc{} && number > 0 && known != std::end(kSuffixes) && !__builtin_mul_overflow(number, known->bytes, &bytes);
  require<ConfigError>(is_good, "--{} is '{}', expected a size such as 5GB, 200MB or 1GiB", option, text);
  return bytes;
}

std::string convert_help(const std::vector<std::string>& arguments) {
  const Subcommand* command = arguments.empty() ? nullptr : find_command(arguments[0]);
  return command == nullptr ? help_text() : command_help(*command);
}

ExitCode run_convert(const std::vector<std::string>& arguments, std::ostream& out, std::ostream* progress) {
  require<ConfigError>(!arguments.empty(), "mica-convert needs a command; see mica-convert --help");
  const Subcommand* known = find_command(arguments[0]);
  if (known == nullptr) refuse_command(arguments[0]);
  const Subcommand& command = *known;
  ConvertCall call{.paths = {}, .options = {}, .out = out, .progress = progress};
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--dry-run")
      call.is_dry_run = true;
    else if (argument == "--quiet")
      call.progress = nullptr;
    else if (argument.starts_with("-"))
      take_option(command, argument, call);
    else
      call.paths.push_back(argument);
  }
  require<ConfigError>(call.paths.size() == command.num_paths, "mica-convert {} takes {}, got {} paths; see mica-convert {} --help",
                       command.name, command.synopsis, call.paths.size(), command.name);
  return command.run(call);
}

}  // namespace mica::checkpoint
