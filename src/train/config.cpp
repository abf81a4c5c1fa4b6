#include "mica/train/config.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include <fmt/ranges.h>

#include "mica/core/error.hpp"
#include "mica/train/model_config.hpp"

#include "config_keys.hpp"
#include "config_other_names.hpp"
#include "ini.hpp"

namespace mica::train {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

const ConfigKey* find_key(std::string_view name) {
  const auto& keys = config_keys();
  const auto found = std::ranges::find(keys, name, &ConfigKey::name);
  return found == keys.end() ? nullptr : &*found;
}

std::string nearest_key(std::string_view name) {
  return std::ranges::min_element(config_keys(), {}, [&](const ConfigKey& key) { return edit_distance(key.name, name); })->name;
}

/// @param place  makes the text that says where the key stands.
template <class Place>
void set_key(Config& config, const std::string& name, const std::string& value, Place&& place) {
  const ConfigKey* key = find_key(name);
  if (key == nullptr) {
    throw ConfigError(fmt::format("{}: unknown key {}; did you mean {}? (mica-train --help lists all keys)", place(), name,
                                  nearest_key(name)));
  }
  const bool is_one_line = std::ranges::none_of(value, [](char c) { return std::iscntrl(static_cast<unsigned char>(c)) && c != '\t'; });
  require<ConfigError>(is_one_line, "{}: the value of {} holds a control character, such as a line break, which a config cannot hold",
                       place(), name);
  const std::optional<std::string> plain = key->is_list ? value : unquoted(value);
  require<ConfigError>(plain.has_value(), "{}: {} is {}, whose double quotes do not close at its end; inside them write \\\" and \\\\ "
                       "for a quote and a backslash", place(), name, value);
  if (!key->set(config, *plain)) {
    throw ConfigError(fmt::format("{}: {} is '{}', expected {}", place(), name, value, key->expected));
  }
}

void apply_flag(Config& config, const std::string& flag) {
  const std::size_t equals = flag.find('=');
  require<ConfigError>(flag.starts_with("--") && equals != std::string::npos,
                       "argument '{}' is not understood, expected --section.key=value (mica-train --help lists all keys)", flag);
  const std::string name = flag.substr(2, equals - 2);
  set_key(config, name, flag.substr(equals + 1), [&] { return "flag " + flag; });
  config.set_by_user.insert(name);
}

void apply_entry(Config& config, const IniEntry& entry, const std::string& file_name) {
  set_key(config, entry.key, entry.value, [&] { return fmt::format("{}:{}", file_name, entry.line); });
}

/// The line of --help that says what PyTorch and Hugging Face call a key; "" where they have no such thing.
std::string elsewhere_line(std::string_view key) {
  const auto found = std::ranges::find(other_names(), key, &OtherNames::key);
  if (found == other_names().end()) return "";
  std::string text;
  if (!found->pytorch.empty()) text += fmt::format("PyTorch: {}", found->pytorch);
  if (!found->hugging_face.empty()) text += fmt::format("{}Hugging Face: {}", text.empty() ? "" : "; ", found->hugging_face);
  return fmt::format("      {}\n", text);
}

/// What an optimizer in backward cannot do, since it never sees all gradients at once.
void check_in_backward(const Config& config) {
  if (!config.optim.in_backward) return;
  require<ConfigError>(config.fsdp.use_orig_params, "optim.in_backward = true needs fsdp.use_orig_params = true");
  require<ConfigError>(config.optim.grad_clip == 0,
                       "optim.in_backward = true steps before the whole gradient's norm is known, and optim.grad_clip is {}: set it "
                       "to 0 (no clipping)",
                       config.optim.grad_clip);
  require<ConfigError>(config.fsdp.param_dtype != "fp16" && config.fsdp.reduce_dtype != "fp16",
                       "optim.in_backward = true cannot skip a step that overflows, as fp16 needs: use bf16 or fp32");
}

}  // namespace

ConfigText read_config_text(const std::string& path) {
  // A folder opens like a file and reads as if it were empty.
  std::error_code none;
  errno = std::filesystem::is_directory(path, none) ? EISDIR : 0;
  std::ifstream file;
  if (errno == 0) file.open(path, std::ios::binary);
  const int open_error = errno;
  std::ostringstream text;
  if (file.is_open()) text << file.rdbuf();
  require<ConfigError>(file.is_open() && !file.bad(), "cannot read the config file {}: {}; give the path of a .cfg file, see configs/",
                       path, errno_text(open_error));
  return {path, text.str()};
}

Config parse_config(const ConfigText& text, const std::vector<std::string>& overrides) {
  Config config;
  for (const IniEntry& entry : parse_ini(text)) {
    apply_entry(config, entry, text.file_name);
    config.set_by_user.insert(entry.key);
  }
  for (const std::string& flag : overrides) apply_flag(config, flag);
  return config;
}

void apply_defaults(Config& config, const ConfigText& text) {
  for (const IniEntry& entry : parse_ini(text)) {
    if (!config.set_by_user.contains(entry.key)) apply_entry(config, entry, text.file_name);
  }
}

void check_config(const Config& config) {
  check_model(config);
  require<ConfigError>(!config.data.train.empty(), "data.train is empty: name at least one token file (mica-tokenize makes them)");
  require<ConfigError>(config.optim.min_lr <= config.optim.lr, "optim.min_lr = {} is above optim.lr = {}", config.optim.min_lr,
                       config.optim.lr);
  require<ConfigError>(config.optim.warmup_steps <= config.train.steps, "optim.warmup_steps = {} is more than train.steps = {}",
                       config.optim.warmup_steps, config.train.steps);
  require<ConfigError>(!config.optim.nesterov || config.optim.momentum > 0,
                       "optim.nesterov = true needs optim.momentum above 0, which is {}", config.optim.momentum);
  require<ConfigError>(
      config.fsdp.shard_dims.empty() || config.fsdp.sharding == "per_parameter",
      "fsdp.shard_dims = {} has no effect with fsdp.sharding = {}: use fsdp.sharding=per_parameter, or leave shard_dims out",
      fmt::join(config.fsdp.shard_dims, ","), config.fsdp.sharding);
  check_in_backward(config);
  require<ConfigError>(!config.train.deterministic || config.train.accumulate == "reduce_each",
                       "train.deterministic = true needs train.accumulate = reduce_each, but it is {}: gradients that a rank adds up "
                       "before they are exchanged depend on the number of ranks",
                       config.train.accumulate);
  require<ConfigError>(!config.train.deterministic || config.train.reproducible,
                       "train.deterministic = true needs train.reproducible = true");
  require<ConfigError>(!config.train.deterministic || !config.optim.in_backward,
                       "train.deterministic = true averages gradients after the last backward, but optim.in_backward = true steps before "
                       "that: choose one");
  require<ConfigError>(
      !config.train.deterministic || config.fsdp.gradient_compression == "none",
      "train.deterministic = true and fsdp.gradient_compression = {} are two ways to reduce gradients: choose one",
      config.fsdp.gradient_compression);
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
