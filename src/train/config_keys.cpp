// SPDX-License-Identifier: Apache-2.0
#include "config_keys.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "mica/train/step_trace.hpp"

#include "ini.hpp"
#include "parse_number.hpp"

namespace mica::train {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 40;

template <class Get>
ConfigKey whole(std::string name, Get field, std::int64_t low, std::int64_t high, std::string help) {
  std::string expected =
      high == kHuge ? fmt::format("a whole number, {} or more", low) : fmt::format("a whole number from {} to {}", low, high);
  return {std::move(name), std::move(help), std::move(expected),
          [=](Config& c, const std::string& text) {
            const auto value = parse_number<std::int64_t>(text);
            if (!value || *value < low || *value > high) return false;
            field(c) = static_cast<std::remove_reference_t<decltype(field(c))>>(*value);
            return true;
          },
          [=](const Config& c) { return fmt::format("{}", field(const_cast<Config&>(c))); }};
}

template <class Get>
ConfigKey real(std::string name, Get field, double low, double high, std::string help) {
  std::string expected = high > 1e300 ? fmt::format("a number, {} or more", low) : fmt::format("a number from {} to {}", low, high);
  return {std::move(name), std::move(help), std::move(expected),
          [=](Config& c, const std::string& text) {
            const auto value = parse_number<double>(text);
            if (!value || !std::isfinite(*value) || *value < low || *value > high) return false;
            field(c) = *value;
            return true;
          },
          [=](const Config& c) { return fmt::format("{}", field(const_cast<Config&>(c))); }};
}

template <class Get>
ConfigKey flag(std::string name, Get field, std::string help) {
  return {std::move(name), std::move(help), "true or false",
          [=](Config& c, const std::string& text) {
            if (text != "true" && text != "false") return false;
            field(c) = text == "true";
            return true;
          },
          [=](const Config& c) { return field(const_cast<Config&>(c)) ? "true" : "false"; }};
}

template <class Get>
ConfigKey choice(std::string name, Get field, std::vector<std::string> choices, std::string help) {
  std::string expected = "one of " + fmt::format("{}", fmt::join(choices, ", "));
  return {std::move(name), std::move(help), std::move(expected),
          [=](Config& c, const std::string& text) {
            for (const std::string& known : choices) {
              if (known != text) continue;
              field(c) = text;
              return true;
            }
            return false;
          },
          [=](const Config& c) { return field(const_cast<Config&>(c)); }};
}

/// One of these words, or a whole number from 1.
template <class Get>
ConfigKey choice_or_count(std::string name, Get field, std::vector<std::string> words, std::string help) {
  std::string expected = fmt::format("{} or a whole number from 1", fmt::join(words, ", "));
  return {std::move(name), std::move(help), std::move(expected),
          [=](Config& c, const std::string& text) {
            const std::int64_t number = parse_number<std::int64_t>(text).value_or(0);
            if (std::ranges::find(words, text) == words.end() && (number < 1 || number > 1'000'000)) return false;
            field(c) = text;
            return true;
          },
          [=](const Config& c) { return field(const_cast<Config&>(c)); }};
}

template <class Get>
ConfigKey text(std::string name, Get field, std::string expected, std::string help) {
  return {std::move(name), std::move(help), std::move(expected),
          [=](Config& c, const std::string& value) {
            field(c) = value;
            return true;
          },
          [=](const Config& c) { return field(const_cast<Config&>(c)); }};
}

template <class Get>
ConfigKey list(std::string name, Get field, std::string help,
               std::string expected = "file names or globs, separated by commas; a name with a comma in double quotes") {
  return {std::move(name),
          std::move(help),
          std::move(expected),
          [=](Config& c, const std::string& value) {
            const std::optional<std::vector<std::string>> items = split_list(value);
            if (items) field(c) = *items;
            return items.has_value();
          },
          [=](const Config& c) {
            std::vector<std::string> items;
            for (const std::string& item : field(const_cast<Config&>(c))) items.push_back(quoted(item, ","));
            return fmt::format("{}", fmt::join(items, ","));
          },
          true};
}

/// A key that was renamed; the old name is still read.
ConfigKey renamed(std::string old_name, ConfigKey key) {
  key.old_name = std::move(old_name);
  return key;
}

/// A key that later versions than the first one have.
ConfigKey added_in(std::string version, ConfigKey key) {
  key.since = std::move(version);
  return key;
}

/// The name is a single path component of runs/<name>.
ConfigKey run_name_key() {
  ConfigKey key = text(
      "run.name", [](Config & c) -> auto& { return c.run.name; }, "a name without /, not . or ..",
      "name of the run; its folder is runs/<name>");
  key.set = [](Config& c, const std::string& value) {
    if (value.empty() || value == "." || value == ".." || value.find('/') != std::string::npos) return false;
    c.run.name = value;
    return true;
  };
  return key;
}

ConfigKey shard_dims_key() {
  ConfigKey key = list(
      "fsdp.shard_dims", [](Config & c) -> auto& { return c.fsdp.shard_dims; },
      "per_parameter: the dim to shard along, for parameters whose full name matches a glob (the first match decides; "
      "without one dim 0); negative dims count from the end, and dims other than 0 must divide evenly",
      "glob:dim, separated by commas");
  key.set = [set = key.set](Config& c, const std::string& value) {
    return set(c, value) && std::ranges::all_of(c.fsdp.shard_dims, [](const std::string& item) {
             const std::size_t colon = item.rfind(':');
             return colon != std::string::npos && colon > 0 && parse_number<int>(item.substr(colon + 1));
           });
  };
  return key;
}

ConfigKey trace_key() {
  ConfigKey key = text(
      "log.trace", [](Config & c) -> auto& { return c.log.trace; }, "a step, or two with a dash: 10-12",
      "steps to trace, 1000 at most: writes trace-rank<N>.json in the run's folder, for Perfetto (ui.perfetto.dev)");
  key.set = [](Config& c, const std::string& value) {
    if (!value.empty() && !parse_steps(value)) return false;
    c.log.trace = value;
    return true;
  };
  return key;
}

// The accessor of a key's field.
// NOLINTBEGIN(bugprone-macro-parentheses): a member's name cannot be in any
#define MICA_FIELD(member) \
  [](Config & c) -> auto& { return c.member; }
// NOLINTEND(bugprone-macro-parentheses)

std::vector<ConfigKey> make_keys() {
  constexpr double kInf = std::numeric_limits<double>::max();
  return {
      run_name_key(),
      text("run.dir", MICA_FIELD(run.dir), "a folder", "folder of metrics, logs and checkpoints; empty: runs/<name>"),
      whole("run.seed", MICA_FIELD(run.seed), 0, std::numeric_limits<std::int64_t>::max(),
            "seed of initialisation, dropout and data order"),
      added_in("0.2.0",
               flag("run.take_over", MICA_FIELD(run.take_over),
                    "take the run's folder at once from a job on another host that has stopped updating run.lock; false: wait until it "
                    "has been silent for 60 s")),

      choice("mesh.device", MICA_FIELD(mesh.device), {"auto", "cpu", "cuda"},
             "device to train on; auto: GPUs if every rank has one, the CPU if none has; refused if only some have"),
      choice(
          "mesh.backend", MICA_FIELD(mesh.backend), {"auto", "mpi", "shared", "nccl", "staged"},
          "backend of collectives. mpi: on CPUs; shared: mpi, and in place of all-gathers the ranks of a node keep parameters once, in "
          "shared memory (/dev/shm): of fp32 all, of bf16 and fp16 those that stay from forward to backward (the root unit's, and all "
          "with fsdp.strategy=shard_grad_op or shard_optim); they also write the gradients of large embeddings and heads in turns, in place "
          "of a reduce-scatter, which gives other last bits; needs fsdp.sharding=flat; nccl: on GPUs, one GPU per rank; staged: GPU memory "
          "copied through the host and sent by MPI, for ranks that share a GPU; auto: on GPUs nccl; on CPUs shared where shard groups lie "
          "inside nodes and /dev/shm has room, else mpi"),
      real("mesh.timeout", MICA_FIELD(mesh.timeout), 1, 1e6,
           "seconds after which an unfinished collective counts as a hang: every rank writes its last operations to RUN/hang, a report "
           "names the rank that the others wait for, and the job ends; also NCCL's timeout for connections and collectives"),
      flag("mesh.register_buffers", MICA_FIELD(mesh.register_buffers),
           "nccl: allocate units' buffers of 4 MiB and more separately and register them with NCCL, for zero-copy transfers; false: take "
           "them from the pool, which needs a little less memory"),
      choice_or_count("mesh.shard_size", MICA_FIELD(mesh.shard_size), {"auto", "world", "node"},
                      "number of ranks that one copy of the model is sharded over; if fewer than all, the copies are replicas (hybrid "
                      "sharding). auto: node for hybrid_shard and hybrid_shard_zero2, world for the other strategies"),
      choice("mesh.streams", MICA_FIELD(mesh.streams), {"auto", "threaded", "inline"},
             "CPU streams: threaded overlaps communication with computation, in threads of its own; inline runs both in turn; "
             "auto: threaded if a rank has more than one thread"),
      whole("mesh.threads", MICA_FIELD(mesh.threads), 0, 4096,
            "OpenMP threads per rank; 0: OMP_NUM_THREADS if set, else the cores the rank is bound to, divided by the ranks that "
            "share them, and no more than its cgroup's CPU quota allows"),

      choice("model.type", MICA_FIELD(model.type), {"gpt2", "llama", "mlp"}, "architecture"),
      whole("model.layers", MICA_FIELD(model.layers), 1, 10'000, "number of blocks"),
      whole("model.heads", MICA_FIELD(model.heads), 1, 10'000, "attention heads; width must be divisible by it, unless head_dim is set"),
      whole("model.kv_heads", MICA_FIELD(model.kv_heads), 0, 10'000,
            "llama: key and value heads of grouped-query attention; 0: as many as heads"),
      whole("model.head_dim", MICA_FIELD(model.head_dim), 0, 1 << 16, "llama: size of a head, even; 0: width / heads"),
      whole("model.width", MICA_FIELD(model.width), 1, 1 << 20, "hidden size: elements of a token's embedding"),
      renamed("model.hidden", whole("model.intermediate_size", MICA_FIELD(model.intermediate_size), 0, 1 << 22,
                                    "channels inside a feed-forward layer; 0: 4 * width")),
      whole("model.vocab_size", MICA_FIELD(model.vocab_size), 1, std::int64_t{1} << 31, "vocabulary size; used as given, never padded"),
      whole("model.context", MICA_FIELD(model.context), 1, 1 << 24, "longest sequence, in tokens"),
      flag("model.tie_embeddings", MICA_FIELD(model.tie_embeddings), "the output head uses the token embedding's weight"),
      real("model.dropout", MICA_FIELD(model.dropout), 0, 0.999,
           "gpt2: dropout probability in training, of the embeddings and of what attention and mlp give to the residual stream, not of "
           "attention weights; model.init_from does not set it"),
      real("model.rms_eps", MICA_FIELD(model.rms_eps), 0, 1, "llama: epsilon of RMSNorm, added to the mean square"),
      real("model.rope_theta", MICA_FIELD(model.rope_theta), 1e-3, 1e30, "llama: base of the rotary frequencies"),
      choice("model.rope_scaling", MICA_FIELD(model.rope_scaling), {"none", "llama3"},
             "llama: how rotary frequencies are scaled for contexts longer than in pretraining"),
      real("model.rope_factor", MICA_FIELD(model.rope_factor), 1, 1e6, "rope_scaling=llama3: low frequencies are divided by this"),
      real("model.rope_low_freq_factor", MICA_FIELD(model.rope_low_freq_factor), 1e-3, 1e6,
           "rope_scaling=llama3: fewer rotations than this within rope_original_context count as low-frequency"),
      real("model.rope_high_freq_factor", MICA_FIELD(model.rope_high_freq_factor), 1e-3, 1e6,
           "rope_scaling=llama3: more rotations than this count as high-frequency, which are not scaled"),
      whole("model.rope_original_context", MICA_FIELD(model.rope_original_context), 1, 1 << 24,
            "rope_scaling=llama3: context length of pretraining"),
      text("model.init_from", MICA_FIELD(model.init_from), "a folder",
           "Hugging Face folder, checkpoint or run's folder whose parameters the run starts with; empty: random initialisation"),

      list("data.train", MICA_FIELD(data.train), "token files to train on, made by mica-tokenize"),
      list("data.val", MICA_FIELD(data.val), "token files to evaluate on; empty: no evaluation"),
      choice("data.order", MICA_FIELD(data.order), {"shuffled", "sequential"},
             "order of sequences: shuffled by run.seed, differently in each epoch, or sequential as in the files"),

      choice("fsdp.strategy", MICA_FIELD(fsdp.strategy),
             {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "shard_optim"},
             "what is sharded. full_shard: parameters, gradients and optimizer state (ZeRO-3); shard_grad_op: the same, but "
             "parameters stay gathered from forward to backward (ZeRO-2); no_shard: nothing (DDP); hybrid_shard and "
             "hybrid_shard_zero2: as these two within groups of mesh.shard_size ranks, replicated across groups; shard_optim: "
             "optimizer state only (ZeRO-1)"),
      choice("fsdp.sharding", MICA_FIELD(fsdp.sharding), {"flat", "per_parameter"},
             "how a unit's parameters are cut: flat: all as one array; per_parameter: each along its first dim (as PyTorch's FSDP2)"),
      shard_dims_key(),
      choice_or_count("fsdp.reshard_after_forward", MICA_FIELD(fsdp.reshard_after_forward), {"auto", "true", "false"},
                      "auto: as fsdp.strategy says; a number: after forward, parameters stay sharded over groups of that many "
                      "neighbouring ranks, and backward gathers within the group only"),
      choice("fsdp.cpu_offload", MICA_FIELD(fsdp.cpu_offload), {"none", "gradients", "parameters"},
             "what is kept in host memory. gradients: sharded gradients; parameters: fp32 masters, gradients and optimizer state"),
      flag("fsdp.full_precision_in_eval", MICA_FIELD(fsdp.full_precision_in_eval), "evaluate in fp32 whatever fsdp.param_dtype is"),
      choice("fsdp.wrap", MICA_FIELD(fsdp.wrap), {"block", "size", "none"},
             "what is a unit, gathered and freed as a whole: each block, modules of min_numel elements or more (size), or the "
             "whole model (none)"),
      whole("fsdp.min_numel", MICA_FIELD(fsdp.min_numel), 1, kHuge, "wrap=size: number of elements from which a module becomes a unit"),
      choice("fsdp.backward_prefetch", MICA_FIELD(fsdp.backward_prefetch), {"pre", "post", "none"},
             "start the next unit's all-gather before (pre) or after (post) the current unit's backward"),
      flag("fsdp.forward_prefetch", MICA_FIELD(fsdp.forward_prefetch),
           "start the next unit's all-gather before the current unit's forward"),
      flag("fsdp.limit_all_gathers", MICA_FIELD(fsdp.limit_all_gathers),
           "at most two all-gathers in flight: the host waits before it enqueues more"),
      choice("fsdp.param_dtype", MICA_FIELD(fsdp.param_dtype), {"fp32", "bf16", "fp16"},
             "dtype of computation and all-gathers; masters stay fp32; fp16 uses loss scaling"),
      choice("fsdp.reduce_dtype", MICA_FIELD(fsdp.reduce_dtype), {"auto", "fp32", "bf16", "fp16"},
             "dtype of gradient reduction; auto: param_dtype"),
      choice("fsdp.buffer_dtype", MICA_FIELD(fsdp.buffer_dtype), {"auto", "fp32", "bf16", "fp16"},
             "dtype of floating-point module buffers, which gpt2, llama and mlp do not have; auto: unchanged"),
      flag("fsdp.keep_low_precision_grads", MICA_FIELD(fsdp.keep_low_precision_grads),
           "keep sharded gradients in reduce_dtype instead of fp32: less memory, but accumulation and clipping round to it, and in fp16 "
           "so does the division by the loss scale (the smallest number of fp16 is 6e-8)"),
      flag("fsdp.use_orig_params", MICA_FIELD(fsdp.use_orig_params),
           "original-parameter mode: a unit may mix frozen and trainable parameters, and a parameter whose backward did not run "
           "has no gradient instead of zeros"),
      choice(
          "fsdp.gradient_compression", MICA_FIELD(fsdp.gradient_compression), {"none", "fp16", "bf16"},
          "compress gradients to this dtype for communication, whatever fsdp.reduce_dtype is; fp16 loses what is below 3e-8 after a "
          "first division by about the root of the ranks, and there is a loss scale only where fsdp.param_dtype or reduce_dtype is fp16"),
      choice_or_count("fsdp.activation_checkpointing", MICA_FIELD(fsdp.activation_checkpointing), {"none", "block"},
                      "block: keep only each block's input and run its forward again in backward: less memory, about a third more time; "
                      "a number: only in that many blocks, the first ones"),
      choice("fsdp.recompute", MICA_FIELD(fsdp.recompute), {"auto", "none", "cheap"},
             "activations that are recomputed in backward instead of kept. cheap: outputs of norms, GELUs and SwiGLUs, a third "
             "less activation memory; auto: cheap on a CPU, where it takes next to no time, none on a GPU. No effect inside blocks that "
             "activation_checkpointing recomputes"),
      flag("fsdp.sync_module_states", MICA_FIELD(fsdp.sync_module_states),
           "broadcast rank 0's initial parameters and buffers; needed only by programs that set initial values themselves, since Mica's "
           "are the same on all ranks"),
      list("fsdp.freeze", MICA_FIELD(fsdp.freeze), "parameters that are not trained",
           "globs over full parameter names, separated by commas"),
      list("fsdp.ignore", MICA_FIELD(fsdp.ignore),
           "parameters that are not sharded: whole on every rank, in checkpoints too, and not trained, since nothing reduces "
           "their gradients",
           "globs over full parameter names, separated by commas"),

      choice("optim.type", MICA_FIELD(optim.type), {"adamw", "adam", "sgd"}, "optimizer"),
      real("optim.lr", MICA_FIELD(optim.lr), 0, 1e6, "peak learning rate"),
      real("optim.beta1", MICA_FIELD(optim.beta1), 0, 0.999999999, "adam, adamw: decay of the running mean of gradients"),
      real("optim.beta2", MICA_FIELD(optim.beta2), 0, 0.999999999, "adam, adamw: decay of the running mean of squared gradients"),
      real("optim.eps", MICA_FIELD(optim.eps), 0, 1, "adam, adamw: added to the denominator"),
      real("optim.momentum", MICA_FIELD(optim.momentum), 0, 0.999999999, "sgd: momentum"),
      flag("optim.nesterov", MICA_FIELD(optim.nesterov), "sgd: Nesterov momentum"),
      added_in(
          "0.2.0",
          choice(
              "optim.state_dtype", MICA_FIELD(optim.state_dtype), {"fp32", "bf16", "int8"},
              "dtype of the optimizer's moments, in memory and in checkpoints: bf16 takes half the space of fp32, int8 a quarter. Both use "
              "stochastic rounding: steps are on average as long as with fp32, and bits are the same on any number of ranks. int8 moments of "
              "gradients end at 20, of their squares at 640, so use it with optim.grad_clip. CPUs only")),
      real(
          "optim.weight_decay", MICA_FIELD(optim.weight_decay), 0, 1e6,
          "weight decay of matrices; biases and norms are not decayed. adamw: of the weights; adam and sgd: L2, added to the gradient, and 0 "
          "unless it is set"),
      real("optim.grad_clip", MICA_FIELD(optim.grad_clip), 0, kInf, "global norm that gradients are clipped to; 0: no clipping"),
      flag("optim.in_backward", MICA_FIELD(optim.in_backward),
           "step each unit as soon as its gradient is reduced, then free the gradient; not with clipping or loss scaling"),
      real("optim.loss_scale", MICA_FIELD(optim.loss_scale), 1e-30, 1e30, "fp16: initial loss scale; halved when a step overflows"),
      whole("optim.loss_scale_interval", MICA_FIELD(optim.loss_scale_interval), 1, 1 << 23,
            "fp16: steps without an overflow after which the loss scale doubles"),
      choice("optim.schedule", MICA_FIELD(optim.schedule), {"cosine", "linear", "constant"},
             "learning-rate schedule after warm-up; cosine and linear reach min_lr at train.steps"),
      whole("optim.warmup_steps", MICA_FIELD(optim.warmup_steps), 0, kHuge, "steps in which the learning rate rises linearly from 0"),
      real("optim.min_lr", MICA_FIELD(optim.min_lr), 0, 1e6, "cosine, linear: learning rate at the last step"),

      whole("train.steps", MICA_FIELD(train.steps), 1, kHuge,
            "optimizer steps of the whole run, those before a resume included; cosine and linear schedules end there"),
      whole("train.micro_batch", MICA_FIELD(train.micro_batch), 1, 1 << 20, "sequences per rank in one forward and backward"),
      whole("train.seq_len", MICA_FIELD(train.seq_len), 1, 1 << 24, "tokens per sequence"),
      whole("train.global_batch", MICA_FIELD(train.global_batch), 0, kHuge,
            "sequences per step over all ranks = micro_batch x accumulation x ranks; 0: that of the checkpoint when resuming, "
            "else micro_batch x ranks"),
      renamed("train.accumulate",
              choice("train.gradient_sync", MICA_FIELD(train.gradient_sync), {"reduce_each", "no_sync"},
                     "gradient accumulation: reduce after each micro-batch, or keep gradients unsharded until the last (no_sync): less "
                     "communication, more memory; they are added up in fsdp.reduce_dtype: with many micro-batches use fp32")),
      flag("train.tf32", MICA_FIELD(train.tf32), "GPUs: fp32 matrix products in TF32 (10 bits of mantissa) on tensor cores"),
      flag("train.f32_logits", MICA_FIELD(train.f32_logits),
           "GPUs: logits in fp32 whatever fsdp.param_dtype is; false: in param_dtype, as with PyTorch's autocast, which takes "
           "less time and half the memory; a bf16 logit of 10 is off by up to 0.03"),
      flag(
          "train.deterministic", MICA_FIELD(train.deterministic),
          "bitwise the same results on any number of ranks (with the same train.micro_batch, train.global_batch and mesh.threads); costs memory and "
          "communication"),
      flag("train.reproducible", MICA_FIELD(train.reproducible),
           "bitwise repeatable on the same mesh and backend. GPUs: false lets cuDNN and cuBLASLt add up attention gradients and parts of "
           "fp32 products in any order, which is faster and takes less memory"),
      whole("train.drift_interval", MICA_FIELD(train.drift_interval), 0, kHuge,
            "steps between checks that replicas are bitwise equal (hybrid and no_shard strategies); 0: never"),
      whole("train.eval_interval", MICA_FIELD(train.eval_interval), 0, kHuge, "steps between evaluations; 0: only after the last step"),
      whole("train.eval_batches", MICA_FIELD(train.eval_batches), 0, kHuge / 16,
            "batches of 16 sequences per evaluation, from the start of data.val, whatever the ranks and micro_batch; 0: all of data.val"),
      whole("train.log_interval", MICA_FIELD(train.log_interval), 1, kHuge, "steps between progress lines"),
      real("train.max_hours", MICA_FIELD(train.max_hours), 0, 1e6,
           "save and exit with status 75 before this many hours have passed, and before a Slurm job ends; 0: only Slurm's limit"),
      added_in(
          "0.2.0",
          choice("train.on_bad_step", MICA_FIELD(train.on_bad_step), {"none", "stop", "skip", "rollback"},
                 "what to do when a step's loss or gradient norm is NaN or infinite, or the norm is a spike (grad_norm_spike), before the "
                 "step changes the model. stop: save the step before and end with status 3; skip: leave the model as it is and go on with "
                 "the next step; rollback: go back to the newest checkpoint, or past it if it has diverged and that did not help, and "
                 "skip the data seen since (not with checkpoint.optimizer=false); none: continue, with a warning. All but none name the "
                 "step and the first bad unit, and make the host wait for the device once per step")),
      added_in("0.2.0", real("train.grad_norm_spike", MICA_FIELD(train.grad_norm_spike), 0, 1e6,
                             "a gradient norm above this many times its running mean also counts as a bad step; 0: off")),

      whole("checkpoint.interval", MICA_FIELD(checkpoint.interval), 0, kHuge, "steps between checkpoints; 0: only after the last step"),
      real("checkpoint.interval_minutes", MICA_FIELD(checkpoint.interval_minutes), 0, 1e6,
           "minutes between checkpoints, in addition to checkpoint.interval, by rank 0's clock; 0: off"),
      flag("checkpoint.async", MICA_FIELD(checkpoint.async),
           "write checkpoints in the background from a copy, which takes as much memory as masters and optimizer state"),
      flag("checkpoint.optimizer", MICA_FIELD(checkpoint.optimizer),
           "save the optimizer state; false: periodic checkpoints and that of the last step hold only the model, for model.init_from and "
           "mica-convert, and cannot be resumed; a run that is stopped before its last step still saves both"),
      whole("checkpoint.keep", MICA_FIELD(checkpoint.keep), 0, 1'000'000, "number of newest checkpoints to keep; 0: all"),
      added_in("0.2.0", whole("checkpoint.keep_every", MICA_FIELD(checkpoint.keep_every), 0, kHuge,
                              "also keep the checkpoints of steps that are multiples of this; 0: none")),
      added_in("0.2.0",
               whole("checkpoint.keep_best", MICA_FIELD(checkpoint.keep_best), 0, 1'000'000,
                     "also keep this many checkpoints with the lowest validation losses; checkpoint.interval must then be a multiple of "
                     "train.eval_interval; 0: none")),
      text("checkpoint.resume", MICA_FIELD(checkpoint.resume), "auto, none or a checkpoint's folder",
           "auto: resume from the run's newest complete checkpoint that has optimizer state; without checkpoints, start anew; none: start "
           "anew, an error if the run has a checkpoint; a folder: go back to that checkpoint, or start from another run's"),
      flag("checkpoint.allow_data_change", MICA_FIELD(checkpoint.allow_data_change),
           "resume although train.seq_len, train.global_batch, data.order or the tokens of data.train have changed: later steps "
           "see other data"),
      added_in(
          "0.2.0",
          flag(
              "checkpoint.emergency", MICA_FIELD(checkpoint.emergency),
              "when ranks are lost, the remaining ranks save the last step, if together they hold all shards (hybrid and no_shard strategies, "
              "on CPUs)")),

      choice("log.level", MICA_FIELD(log.level), {"debug", "info", "warn", "error"},
             "lowest level of messages that is printed; debug also shows where start-up time goes"),
      trace_key(),
      flag("log.metrics", MICA_FIELD(log.metrics), "write metrics.jsonl"),
      added_in("0.2.0", flag("log.tensorboard", MICA_FIELD(log.tensorboard),
                             "write event files for TensorBoard into the run's folder: tensorboard --logdir RUN")),
  };
}
#undef MICA_FIELD

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = make_keys();
  return keys;
}

}  // namespace mica::train
