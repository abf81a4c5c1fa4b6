// SPDX-License-Identifier: Apache-2.0
#include "mica/train/config.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>

#include "mica/core/error.hpp"
#include "mica/io/quoted_name.hpp"
#include "mica/train/model_config.hpp"
#include "mica/train/step_trace.hpp"

#include "config_keys.hpp"
#include "config_other_names.hpp"
#include "idle_keys.hpp"
#include "ini.hpp"
#include "key_hint.hpp"

namespace mica::train {
namespace {

constexpr std::int64_t kMaxConfigBytes = 1 << 20;

const ConfigKey* find_key(std::string_view name) {
  const auto found = std::ranges::find_if(
      config_keys(), [&](const ConfigKey& key) { return key.name == name || (!key.old_name.empty() && key.old_name == name); });
  return found == config_keys().end() ? nullptr : &*found;
}

const ConfigKey& known_key(const std::string& name, const std::string& place) {
  const ConfigKey* key = find_key(name);
  if (key == nullptr) {
    const std::string hint = hint_for_key(name);
    throw ConfigError(fmt::format("{}: unknown key {}{}{} (mica-train --help lists all keys)", place, io::quoted_name(name),
                                  hint.empty() ? "" : ": ", hint));
  }
  return *key;
}

/// @param name  the name that the user wrote: the key's own or its old one
void set_value(Config& config, const ConfigKey& key, const std::string& name, const std::string& value, const std::string& place) {
  const bool is_one_line = std::ranges::none_of(value, [](char c) { return std::iscntrl(static_cast<unsigned char>(c)) && c != '\t'; });
  require<ConfigError>(is_one_line, "{}: the value of {} holds a control character, such as a line break, which a config cannot hold",
                       place, name);
  const std::optional<std::string> plain = key.is_list ? value : unquoted(value);
  require<ConfigError>(plain.has_value(),
                       "{}: {} is {}, whose double quotes do not close at its end; inside them write \\\" and \\\\ "
                       "for a quote and a backslash",
                       place, name, io::quoted_name(value));
  require<ConfigError>(key.set(config, *plain), "{}: {} is {}, expected {}", place, name, io::quoted_name(value), key.expected);
}

/// The keys that a file, or the flags, have set so far, and the names used for them.
class KeysSet {
 public:
  /// @param name  as written here  @param place  "x.cfg:7"  @throws ConfigError naming both places if the other name was used before.
  void add(Config& config, const ConfigKey& key, const std::string& name, const std::string& place) {
    const auto [first, is_new] = names_.try_emplace(&key, Name{name, place});
    require<ConfigError>(is_new || first->second.text == name,
                         "{}: {} and {} ({}) are the same key, and {} is its old name: delete one of the "
                         "two",
                         place, name, first->second.text, first->second.place, key.old_name);
    if (name != key.name) config.old_names[name] = key.name;
    config.set_by_user.insert(key.name);
  }

 private:
  struct Name {
    std::string text, place;
  };
  std::map<const ConfigKey*, Name> names_;
};

void apply_flag(Config& config, const std::string& flag, KeysSet& set) {
  require<ConfigError>(flag.starts_with("--"),
                       "argument {} is not understood, expected --section.key=value (mica-train --help lists all keys)",
                       io::quoted_name(flag));
  const std::string place = "flag " + io::quoted_name(flag);
  const std::size_t equals = flag.find('=');
  const std::string name = flag.substr(2, std::min(equals, flag.size()) - 2);
  const ConfigKey& key = known_key(name, place);
  require<ConfigError>(equals != std::string::npos, "{} has no value, expected {}=VALUE: {} (mica-train --help lists all keys)", flag, flag,
                       key.expected);
  set_value(config, key, name, flag.substr(equals + 1), place);
  set.add(config, key, name, place);
}

std::string place_of(const IniEntry& entry, const ConfigText& text) { return fmt::format("{}:{}", text.file_name, entry.line); }

/// The line of --help that says what PyTorch and Hugging Face call a key; "" where they have no such thing.
std::string elsewhere_line(std::string_view key) {
  const auto found = std::ranges::find(other_names(), key, &OtherNames::key);
  if (found == other_names().end()) return "";
  std::string text;
  if (!found->pytorch.empty()) text += fmt::format("PyTorch: {}", without_marks(found->pytorch));
  if (!found->hugging_face.empty()) text += fmt::format("{}Hugging Face: {}", text.empty() ? "" : "; ", without_marks(found->hugging_face));
  return text.empty() ? "" : fmt::format("      {}\n", text);
}

/// Ignored parameters are stored in param_dtype, and a full-precision evaluation computes in fp32 with them.
void check_ignored(const Config& config) {
  const bool is_low = config.fsdp.param_dtype != "fp32";
  require<ConfigError>(config.fsdp.ignore.empty() || !config.fsdp.full_precision_in_eval || !is_low,
                       "fsdp.full_precision_in_eval = true evaluates in fp32, but fsdp.ignore keeps parameters in fsdp.param_dtype = {} "
                       "alone: choose one of the two, or fsdp.param_dtype=fp32",
                       config.fsdp.param_dtype);
}

/// What an optimizer in backward cannot do, since it never sees all gradients at once.
void check_in_backward(const Config& config) {
  if (!config.optim.in_backward) return;
  require<ConfigError>(config.optim.grad_clip == 0,
                       "optim.in_backward = true steps before the whole gradient's norm is known, and optim.grad_clip is {}: set it "
                       "to 0 (no clipping)",
                       config.optim.grad_clip);
  require<ConfigError>(config.fsdp.param_dtype != "fp16" && config.fsdp.reduce_dtype != "fp16",
                       "optim.in_backward = true cannot skip a step that overflows, as fp16 needs: use bf16 or fp32");
}

/// Bad steps are recognised by gradients, before they change anything.
void check_bad_steps(const Config& config) {
  const bool acts = config.train.on_bad_step != "none";
  require<ConfigError>(!acts || !config.optim.in_backward,
                       "train.on_bad_step = {} judges the whole gradient before the optimizer steps, but optim.in_backward = true steps "
                       "before that: choose one",
                       config.train.on_bad_step);
  require<ConfigError>(!acts || (config.fsdp.param_dtype != "fp16" && config.fsdp.reduce_dtype != "fp16"),
                       "train.on_bad_step = {} does not go with fp16, whose loss scaler skips steps that overflow: use bf16, or "
                       "train.on_bad_step = none",
                       config.train.on_bad_step);
  require<ConfigError>(config.train.on_bad_step != "rollback" || config.checkpoint.optimizer,
                       "train.on_bad_step = rollback needs checkpoints with the optimizer state, but checkpoint.optimizer = false saves "
                       "them without: change one of the two");
}

void check_retention(const Config& config) {
  const Config::Checkpoint& checkpoint = config.checkpoint;
  const auto check_rule = [&](std::string_view key, std::int64_t value) {
    require<ConfigError>(
        value == 0 || checkpoint.keep > 0,
        "{} = {} keeps more checkpoints than the newest ones, but checkpoint.keep = 0 keeps all: set checkpoint.keep = 1 or "
        "more",
        key, value);
  };
  check_rule("checkpoint.keep_every", checkpoint.keep_every);
  check_rule("checkpoint.keep_best", checkpoint.keep_best);
  require<ConfigError>(checkpoint.keep_every == 0 || (checkpoint.interval > 0 && checkpoint.keep_every % checkpoint.interval == 0),
                       "checkpoint.keep_every = {} keeps checkpoints of steps that are multiples of it, but they are made every "
                       "checkpoint.interval = {} steps: set keep_every to a multiple of that, and that above 0",
                       checkpoint.keep_every, checkpoint.interval);
  if (checkpoint.keep_best == 0) return;
  require<ConfigError>(!config.data.val.empty(), "checkpoint.keep_best = {} compares validation losses, but data.val is empty",
                       checkpoint.keep_best);
  const std::int64_t evaluations = config.train.eval_interval;
  require<ConfigError>(
      evaluations > 0 && checkpoint.interval > 0 && checkpoint.interval % evaluations == 0,
      "checkpoint.keep_best = {} needs the validation loss of every checkpoint: set checkpoint.interval = {} to a multiple "
      "of train.eval_interval = {}, both above 0",
      checkpoint.keep_best, checkpoint.interval, evaluations);
}

}  // namespace

ConfigText read_config_text(const std::string& path) {
  // Without this check a folder would open and read as an empty file.
  std::error_code none;
  errno = std::filesystem::is_directory(path, none) ? EISDIR : 0;
  std::ifstream file;
  if (errno == 0) file.open(path, std::ios::binary);
  const int open_error = errno;
  std::string text(kMaxConfigBytes + 1, '\0');
  if (file.is_open()) file.read(text.data(), std::ssize(text));
  require<ConfigError>(file.is_open() && !file.bad(), "cannot read the config file {}: {}; give the path of a .cfg file, see configs/",
                       path, errno_text(open_error));
  require<ConfigError>(file.gcount() <= kMaxConfigBytes,
                       "{}: has more than {} bytes, so it is not a config file; give the path of a .cfg file, see "
                       "configs/",
                       path, kMaxConfigBytes);
  text.resize(static_cast<std::size_t>(file.gcount()));
  return {path, text};
}

Config parse_config(const ConfigText& text, const std::vector<std::string>& overrides) {
  Config config;
  KeysSet in_file, in_flags;  // a flag wins over the file, whichever names they use
  for (const IniEntry& entry : parse_ini(text)) {
    const std::string place = place_of(entry, text);
    const ConfigKey& key = known_key(entry.key, place);
    set_value(config, key, entry.key, entry.value, place);
    in_file.add(config, key, entry.key, place);
  }
  for (const std::string& flag : overrides) apply_flag(config, flag, in_flags);
  // Decay as L2 in the gradient is not AdamW's: as in PyTorch, there is none unless it is asked for.
  if (config.optim.type != "adamw" && !config.set_by_user.contains("optim.weight_decay")) config.optim.weight_decay = 0;
  return config;
}

void apply_defaults(Config& config, const ConfigText& text) {
  for (const IniEntry& entry : parse_ini(text)) {
    const std::string place = place_of(entry, text);
    const ConfigKey& key = known_key(entry.key, place);
    if (!config.set_by_user.contains(key.name)) set_value(config, key, entry.key, entry.value, place);
  }
}

/// A folder of such a name would be made, perhaps on the disk of the home folder.
void check_run_dir(const std::string& folder) {
  const std::size_t dollar = folder.find('$');
  const char next = dollar == std::string::npos || dollar + 1 == folder.size() ? ' ' : folder[dollar + 1];
  const bool is_variable = std::isalpha(static_cast<unsigned char>(next)) != 0 || next == '_' || next == '{';
  require<ConfigError>(
      !is_variable && !folder.starts_with('~'),
      "run.dir = {} is not expanded, as a shell would do: write the whole path, or give the flag --run.dir=\"$HOME/...\" in a "
      "shell (a folder whose name does begin with ~: ./~...)",
      io::quoted_name(folder));
}

/// Every rank keeps a trace in memory until its last step has run.
void check_trace(const std::string& steps) {
  constexpr std::int64_t kMostSteps = 1000;
  const auto range = parse_steps(steps);
  require<ConfigError>(!range || range->last - range->first < kMostSteps, "log.trace = {}: expected at most {} steps", steps, kMostSteps);
}

void check_config(const Config& config) {
  refuse_idle_keys(config);
  check_model(config);
  check_run_dir(config.run.dir);
  check_trace(config.log.trace);
  require<ConfigError>(!config.data.train.empty(), "data.train is empty: name at least one token file (mica-tokenize makes them)");
  require<ConfigError>(config.optim.min_lr <= config.optim.lr, "optim.min_lr = {} is above optim.lr = {}", config.optim.min_lr,
                       config.optim.lr);
  require<ConfigError>(config.optim.warmup_steps <= config.train.steps, "optim.warmup_steps = {} is more than train.steps = {}",
                       config.optim.warmup_steps, config.train.steps);
  require<ConfigError>(!config.optim.nesterov || config.optim.momentum > 0,
                       "optim.nesterov = true needs optim.momentum above 0, which is {}", config.optim.momentum);
  check_ignored(config);
  check_in_backward(config);
  check_bad_steps(config);
  require<ConfigError>(!config.train.deterministic || config.train.gradient_sync == "reduce_each",
                       "train.deterministic = true needs train.gradient_sync = reduce_each, but it is {}: gradients that a rank adds up "
                       "before they are exchanged depend on the number of ranks",
                       config.train.gradient_sync);
  const std::string& reduce_dtype = config.fsdp.reduce_dtype == "auto" ? config.fsdp.param_dtype : config.fsdp.reduce_dtype;
  require<ConfigError>(!config.train.deterministic || !config.fsdp.keep_low_precision_grads || reduce_dtype == "fp32",
                       "train.deterministic = true adds up all micro-batches before it divides, and fsdp.keep_low_precision_grads = true "
                       "would round each sum to {}: choose one",
                       reduce_dtype);
  require<ConfigError>(!config.train.deterministic || config.train.reproducible,
                       "train.deterministic = true needs train.reproducible = true");
  require<ConfigError>(!config.train.deterministic || !config.optim.in_backward,
                       "train.deterministic = true averages gradients after the last backward, but optim.in_backward = true steps before "
                       "that: choose one");
  require<ConfigError>(!config.train.deterministic || config.fsdp.gradient_compression == "none",
                       "train.deterministic = true and fsdp.gradient_compression = {} are two ways to reduce gradients: choose one",
                       config.fsdp.gradient_compression);
  check_retention(config);
}

std::string to_ini(const Config& config, IniKeys which) {
  const Config defaults;
  std::string text, section;
  for (const ConfigKey& key : config_keys()) {
    if (which == IniKeys::changed && key.get(config) == key.get(defaults)) continue;
    const std::size_t dot = key.name.find('.');
    if (key.name.substr(0, dot) != section) {
      section = key.name.substr(0, dot);
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    if (which == IniKeys::explained) text += fmt::format("# {}; {}\n", key.help, key.expected);
    text += fmt::format("{} = {}\n", key.name.substr(dot + 1), key.is_list ? key.get(config) : quoted(key.get(config)));
  }
  return text;
}

std::vector<KeyChange> compare_configs(const Config& before, const Config& after) {
  std::vector<KeyChange> changes;
  for (const ConfigKey& key : config_keys()) {
    if (key.get(before) != key.get(after)) changes.push_back({key.name, key.get(before), key.get(after)});
  }
  return changes;
}

std::string config_help() {
  const Config defaults;
  std::string text, section;
  for (const ConfigKey& key : config_keys()) {
    const std::string of = key.name.substr(0, key.name.find('.'));
    if (of != section) {
      section = of;
      text += fmt::format("\n[{}]\n", section);
    }
    text += fmt::format("  --{}={}\n      {}\n      {}\n{}", key.name, key.get(defaults), key.help, key.expected, elsewhere_line(key.name));
  }
  return text;
}

}  // namespace mica::train
