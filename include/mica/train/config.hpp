// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace mica::train {

/// A run's configuration: one field per key of the INI file (docs/design.md, Configuration). The table in config_keys.cpp has
/// each key's help and range; `mica-train --help` prints it with the defaults.
struct Config {
  struct Run {
    std::string name = "run";
    std::string dir;  ///< empty: runs/<name>
    std::uint64_t seed = 1;
    bool take_over = false;
  } run;
  struct Mesh {
    std::string device = "auto";
    std::string backend = "auto";
    double timeout = 300;
    bool register_buffers = true;
    std::string shard_size = "auto";
    std::string streams = "auto";
    std::int64_t threads = 0;
  } mesh;
  struct Model {
    std::string type = "gpt2";
    std::int64_t layers = 4, heads = 4, width = 128, intermediate_size = 0, vocab_size = 256, context = 128;
    bool tie_embeddings = true;
    double dropout = 0;
    std::int64_t kv_heads = 0, head_dim = 0;
    double rms_eps = 1e-5;
    double rope_theta = 10000;
    std::string rope_scaling = "none";
    double rope_factor = 8, rope_low_freq_factor = 1, rope_high_freq_factor = 4;
    std::int64_t rope_original_context = 8192;
    std::string init_from;
  } model;
  struct Data {
    std::vector<std::string> train;
    std::vector<std::string> val;
    std::string order = "shuffled";
  } data;
  struct Fsdp {
    std::string strategy = "full_shard";
    std::string sharding = "flat";
    std::vector<std::string> shard_dims;
    std::string reshard_after_forward = "auto";
    std::string cpu_offload = "none";
    bool full_precision_in_eval = false;
    std::string wrap = "block";
    std::int64_t min_numel = 100'000'000;
    std::string backward_prefetch = "pre";
    bool forward_prefetch = false;
    bool limit_all_gathers = true;
    std::string param_dtype = "fp32";
    std::string reduce_dtype = "auto";
    std::string buffer_dtype = "auto";
    bool keep_low_precision_grads = false;
    bool use_orig_params = false;
    std::string gradient_compression = "none";
    std::string activation_checkpointing = "none";
    std::string recompute = "auto";
    bool sync_module_states = false;
    std::vector<std::string> freeze;
    std::vector<std::string> ignore;
  } fsdp;
  struct Optim {
    std::string type = "adamw";
    double lr = 3e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, momentum = 0, weight_decay = 0.1, grad_clip = 1.0;
    bool nesterov = false;
    std::string state_dtype = "fp32";
    bool in_backward = false;
    double loss_scale = 65536;
    std::int64_t loss_scale_interval = 2000;
    std::string schedule = "cosine";
    std::int64_t warmup_steps = 0;
    double min_lr = 0;
  } optim;
  struct Train {
    std::int64_t steps = 100, micro_batch = 4, seq_len = 128, global_batch = 0;
    std::string gradient_sync = "reduce_each";
    bool deterministic = false;
    bool reproducible = true;
    bool tf32 = false;
    bool f32_logits = true;
    std::int64_t drift_interval = 0;
    std::int64_t eval_interval = 0, eval_batches = 8, log_interval = 10;
    double max_hours = 0;
    std::string on_bad_step = "none";
    double grad_norm_spike = 0;
  } train;
  struct Checkpoint {
    std::int64_t interval = 0;
    double interval_minutes = 0;
    bool async = false;
    bool optimizer = true;
    std::int64_t keep = 2, keep_every = 0, keep_best = 0;
    std::string resume = "auto";
    bool allow_data_change = false;
    bool emergency = true;
  } checkpoint;
  struct Log {
    std::string level = "info";
    bool metrics = true;
    std::string trace;  ///< "10-12": steps, or empty
    bool tensorboard = false;
  } log;

  /// Names of the keys that a file or a flag has set; the others have their defaults.
  std::set<std::string> set_by_user;
  /// Of these, the keys given by an earlier name: "model.hidden" -> "model.intermediate_size".
  std::map<std::string, std::string> old_names;

  [[nodiscard]] std::string run_folder() const { return run.dir.empty() ? "runs/" + run.name : run.dir; }
};

/// The INI text of a file, read by rank 0 and sent to every rank.
struct ConfigText {
  std::string file_name;  ///< for errors; empty if there is no file
  std::string text;
};

/// Reads a config file. @throws ConfigError if it cannot be read.
[[nodiscard]] ConfigText read_config_text(const std::string& path);

/// @param overrides  "--train.steps=5", in order; they override the file.
/// Old names of keys are read too; new names are written.
/// @throws ConfigError with file and line (or flag), the key, what was seen, what was expected; for an unknown key the nearest known ones;
/// for a key that one file, or the flags, set by both names, both names.
[[nodiscard]] Config parse_config(const ConfigText& text, const std::vector<std::string>& overrides);

/// Sets keys that the user did not set from `text`. @throws ConfigError as parse_config()
void apply_defaults(Config& config, const ConfigText& text);

/// Checks values against each other, without files or ranks (width and heads, seq_len and context, ...).
/// @throws ConfigError naming both keys.
void check_config(const Config& config);

/// Which keys an INI file gets: all; all, each with a comment line of help; those that differ from their defaults.
enum class IniKeys { all, explained, changed };
/// The config as an INI file that parses to the same Config.
[[nodiscard]] std::string to_ini(const Config& config, IniKeys keys = IniKeys::all);

/// Keys whose values differ: "optim.lr: 0.0003 -> 0.0001", before -> after.
struct KeyChange {
  std::string key, before, after;
};
[[nodiscard]] std::vector<KeyChange> compare_configs(const Config& before, const Config& after);

/// Keys by section with type, default and help, for --help.
[[nodiscard]] std::string config_help();

}  // namespace mica::train
