// SPDX-License-Identifier: Apache-2.0
#include "config_other_names.hpp"

#include <algorithm>

namespace mica::train {
namespace {

constexpr std::string_view kOfARank =
    "It counts the sequences that a rank computes at once; train.global_batch counts those of a whole "
    "step.";
constexpr std::string_view kOfAStep = "It counts the sequences of a step: micro_batch x accumulation x ranks.";
constexpr std::string_view kInSteps = "It counts optimizer steps; start-up prints how many epochs they are.";
constexpr std::string_view kOneKeyForDtypes = "Its values are fp32, bf16 and fp16.";
constexpr std::string_view kIsReproducible = "It is on by default; train.deterministic also gives the same bits on other numbers of ranks.";
constexpr std::string_view kRanksAreStarted =
    "the launcher decides how many ranks there are: mpirun -np 8, or srun --nodes=2 --ntasks-per-node=4";
constexpr std::string_view kGpusAreTaken =
    "no key counts GPUs: each rank takes one, by its number on the node; start as many ranks as there are GPUs";

constexpr std::string_view kIsInTokenFiles =
    "a tokenizer is chosen where token files are made: mica-tokenize --vocab=tokenizer.json --out=FILE; data.train names the files";

// "<word>" in a name is also a word for hints.
constexpr OtherNames kOtherNames[] = {
    {"run.name", "", "<run_name>", "job_name experiment_name", ""},
    {"run.dir", "", "<output_dir>", "out_dir logging_dir save_dir", ""},
    {"run.seed", "<manual_seed>", "seed, <data_seed>", "random_seed", ""},

    {"", "", "", "nodes nnodes num_nodes ntasks ntasks_per_node nproc_per_node num_processes num_ranks world_size", kRanksAreStarted},
    {"", "", "", "gpus num_gpus gpus_per_node gpus_per_task", kGpusAreTaken},
    {"mesh.device", "FSDP1 device_id", "<use_cpu>", "accelerator", ""},
    {"mesh.backend", "init_process_group(backend)", "<ddp_backend>", "distributed_backend", ""},
    {"mesh.timeout", "init_process_group(timeout)", "<ddp_timeout>", "nccl_timeout", ""},
    {"mesh.register_buffers", "FSDP2 set_allocate_memory_from_process_group_for_comm", "", "", ""},
    {"mesh.shard_size", "init_device_mesh((replicas, shard_size))", "accelerate ParallelismConfig(dp_shard_size)",
     "device_mesh shard_degree data_parallel_shard_degree", ""},
    {"mesh.shard_size", "", "", "replicate_degree data_parallel_replicate_degree",
     "The number of replicas is the number of ranks divided by it."},
    {"mesh.threads", "set_num_threads", "accelerate launch --num_cpu_threads_per_process", "cpus_per_task num_threads omp_num_threads", ""},

    {"model.type", "", "config.json <model_type>", "arch architecture architectures", ""},
    {"model.layers", "", "config.json <num_hidden_layers>, <n_layer>", "n_layers num_layers", ""},
    {"model.heads", "", "config.json <num_attention_heads>, <n_head>", "n_heads num_heads", ""},
    {"model.kv_heads", "", "config.json <num_key_value_heads>", "num_query_groups n_kv_heads", ""},
    {"model.head_dim", "", "config.json head_dim", "kv_channels head_size", ""},
    {"model.width", "", "config.json <hidden_size>, <n_embd>", "d_model dim embed_dim", ""},
    {"model.intermediate_size", "", "config.json intermediate_size, <n_inner>", "hidden_dim ffn_hidden_size d_ff mlp_dim", ""},
    {"model.vocab_size", "", "config.json vocab_size", "n_vocab", ""},
    {"model.vocab_size", "", "", "padded_vocab_size", "It is exact: nothing is padded."},
    {"model.context", "", "config.json <max_position_embeddings>, <n_positions>", "n_ctx context_length", ""},
    {"model.tie_embeddings", "", "config.json <tie_word_embeddings>", "share_embeddings", ""},
    {"model.dropout", "Dropout(p)", "config.json <embd_pdrop>, <resid_pdrop>", "hidden_dropout", ""},
    {"model.dropout", "", "", "attn_pdrop attention_dropout", "Attention weights have no dropout."},
    {"model.rms_eps", "RMSNorm(eps)", "config.json <rms_norm_eps>", "norm_eps", ""},
    {"model.rope_theta", "", "config.json rope_theta", "rotary_base", ""},
    {"model.rope_scaling", "", "config.json rope_scaling.rope_type", "", ""},
    {"model.rope_factor", "", "config.json rope_scaling.factor", "", ""},
    {"model.rope_low_freq_factor", "", "config.json rope_scaling.<low_freq_factor>", "", ""},
    {"model.rope_high_freq_factor", "", "config.json rope_scaling.<high_freq_factor>", "", ""},
    {"model.rope_original_context", "", "config.json rope_scaling.<original_max_position_embeddings>", "", ""},
    {"model.init_from", "load_state_dict", "from_pretrained", "model_name_or_path pretrained_model_name_or_path pretrained_checkpoint", ""},

    {"data.train", "DataLoader(<dataset>)", "Trainer(<train_dataset>)", "train_file train_data train_data_path data_path dataset_name", ""},
    {"data.val", "", "Trainer(<eval_dataset>)", "validation_file val_data valid_data_path", ""},
    {"", "", "", "tokenizer tokenizer_name tokenizer_path tokenizer_type", kIsInTokenFiles},
    {"data.order", "DistributedSampler(<shuffle>)", "train_sampling_strategy", "", ""},

    {"fsdp.strategy", "FSDP1 <sharding_strategy>", "fsdp; accelerate fsdp_sharding_strategy", "", ""},
    {"fsdp.strategy", "", "", "fsdp_config", "Each setting is a key of its own in [fsdp]."},
    {"fsdp.strategy", "", "", "zero_stage zero_optimization stage", "Stage 1 is shard_optim, 2 shard_grad_op, 3 full_shard."},
    {"fsdp.sharding", "flat: FSDP1, per_parameter: FSDP2", "accelerate fsdp_version", "", ""},
    {"fsdp.shard_dims", "FSDP2 <shard_placement_fn>", "", "", ""},
    {"fsdp.reshard_after_forward", "FSDP2 reshard_after_forward", "accelerate fsdp_reshard_after_forward", "", ""},
    {"fsdp.cpu_offload", "FSDP1 cpu_offload, FSDP2 <offload_policy>", "fsdp=offload; accelerate fsdp_offload_params",
     "offload_params offload_param offload_optimizer", ""},
    {"fsdp.full_precision_in_eval", "environment FSDP_USE_FULL_PREC_IN_EVAL", "", "", ""},
    {"fsdp.wrap", "FSDP1 <auto_wrap_policy>", "fsdp=auto_wrap; accelerate fsdp_auto_wrap_policy",
     "wrap_policy transformer_layer_cls_to_wrap", ""},
    {"fsdp.min_numel", "size_based_auto_wrap_policy(<min_num_params>)", "fsdp_config min_num_params", "", ""},
    {"fsdp.backward_prefetch", "FSDP1 backward_prefetch", "fsdp_config backward_prefetch", "", ""},
    {"fsdp.forward_prefetch", "FSDP1 forward_prefetch", "fsdp_config forward_prefetch", "", ""},
    {"fsdp.limit_all_gathers", "FSDP1 limit_all_gathers", "fsdp_config limit_all_gathers", "", ""},
    {"fsdp.param_dtype", "FSDP1 MixedPrecision(param_dtype), FSDP2 MixedPrecisionPolicy(param_dtype)", "<bf16>, <fp16>",
     "amp autocast dtype torch_dtype precision mixed_precision mixed_precision_policy mp_policy", kOneKeyForDtypes},
    {"fsdp.reduce_dtype", "FSDP1 MixedPrecision(reduce_dtype), FSDP2 MixedPrecisionPolicy(reduce_dtype)", "", "", ""},
    {"fsdp.buffer_dtype", "FSDP1 MixedPrecision(buffer_dtype)", "", "", ""},
    {"fsdp.keep_low_precision_grads", "FSDP1 MixedPrecision(keep_low_precision_grads)", "", "", ""},
    {"fsdp.use_orig_params", "FSDP1 use_orig_params", "fsdp_config use_orig_params", "", ""},
    {"fsdp.gradient_compression", "register_comm_hook(fp16_compress_hook, bf16_compress_hook)", "", "", ""},
    {"fsdp.activation_checkpointing", "apply_activation_checkpointing", "<gradient_checkpointing>; fsdp_config activation_checkpointing",
     "activation_checkpoint recompute_granularity recompute_num_layers", ""},
    {"fsdp.recompute", "create_selective_checkpoint_contexts", "", "", ""},
    {"fsdp.sync_module_states", "FSDP1 sync_module_states", "fsdp_config sync_module_states", "", ""},
    {"fsdp.freeze", "requires_grad_(False)", "", "freeze_layers", ""},
    {"fsdp.ignore", "FSDP1 <ignored_states>, FSDP2 <ignored_params>", "", "ignored_modules ignored_parameters", ""},

    {"optim.type", "optim.AdamW, optim.Adam, optim.SGD", "optim", "optimizer", ""},
    {"optim.lr", "lr", "<learning_rate>", "max_lr", ""},
    {"optim.beta1", "betas[0]", "<adam_beta1>", "", ""},
    {"optim.beta2", "betas[1]", "<adam_beta2>", "", ""},
    {"optim.eps", "eps", "<adam_epsilon>", "adam_eps", ""},
    {"optim.momentum", "SGD(momentum)", "", "", ""},
    {"optim.nesterov", "SGD(nesterov)", "", "", ""},
    {"optim.state_dtype", "torchao.optim.AdamW8bit, bitsandbytes.optim.AdamW8bit(<optim_bits>)", "optim=adamw_bnb_8bit",
     "exp_avg_dtype exp_avg_sq_dtype use_precision_aware_optimizer moment_dtype adamw8bit adamw_8bit use_8bit_adam", ""},
    {"optim.weight_decay", "weight_decay", "weight_decay", "wd", ""},
    {"optim.grad_clip", "clip_grad_norm_(<max_norm>)", "<max_grad_norm>", "clip_grad clip_grad_norm gradient_clipping gradient_clip_val",
     ""},
    {"optim.in_backward", "_apply_optimizer_in_backward", "", "optimizer_in_backward", ""},
    {"optim.loss_scale", "GradScaler(<init_scale>)", "", "initial_loss_scale", ""},
    {"optim.loss_scale_interval", "GradScaler(<growth_interval>)", "", "loss_scale_window", ""},
    {"optim.schedule", "optim.<lr_scheduler>", "<lr_scheduler_type>", "lr_decay_style scheduler", ""},
    {"optim.warmup_steps", "", "warmup_steps", "warmup num_warmup_steps warmup_iters lr_warmup_iters", ""},
    {"optim.warmup_steps", "", "", "warmup_ratio", "It counts optimizer steps."},
    {"optim.min_lr", "CosineAnnealingLR(eta_min)", "lr_scheduler_kwargs min_lr", "", ""},

    {"train.steps", "", "<max_steps>", "num_steps total_steps max_iters train_iters", ""},
    {"train.steps", "", "", "epochs max_epochs num_epochs num_train_epochs", kInSteps},
    {"train.micro_batch", "DataLoader(<batch_size>)", "<per_device_train_batch_size>",
     "batch micro_batch_size per_device_batch_size per_gpu_train_batch_size train_micro_batch_size_per_gpu", kOfARank},
    {"train.seq_len", "", "trl SFTConfig(<max_length>)", "max_seq_len max_seq_length seq_length sequence_length", ""},
    {"train.seq_len", "", "", "block_size", "The longest sequence that the model can take is model.context."},
    {"train.global_batch", "", "per_device_train_batch_size x <gradient_accumulation_steps> x ranks",
     "global_batch_size total_batch_size train_batch_size grad_accum_steps accumulate_grad_batches", kOfAStep},
    {"train.gradient_sync", "FSDP1 <no_sync>, FSDP2 set_requires_gradient_sync", "accelerate GradientAccumulationPlugin(<sync_each_batch>)",
     "requires_gradient_sync", ""},
    {"train.tf32", "backends.cuda.matmul.<allow_tf32>", "tf32", "", ""},
    {"train.reproducible", "<use_deterministic_algorithms>", "<full_determinism>", "deterministic_algorithms cudnn_deterministic",
     kIsReproducible},
    {"train.eval_interval", "", "<eval_steps>", "eval_every val_interval validation_interval val_check_interval", ""},
    {"train.eval_batches", "", "", "eval_iters limit_val_batches", ""},
    {"train.log_interval", "", "<logging_steps>", "log_steps log_every log_freq log_every_n_steps", ""},
    {"train.max_hours", "", "", "time time_limit max_time", ""},
    {"train.on_bad_step", "clip_grad_norm_(error_if_nonfinite)", "",
     "terminate_on_nan detect_anomaly check_for_nan_in_loss_and_grad nan_policy", "It is none, stop, skip or rollback."},

    {"checkpoint.interval", "", "<save_steps>", "save_interval save_every checkpoint_interval checkpoint_steps", ""},
    {"checkpoint.async", "distributed.checkpoint.<async_save>", "", "async_mode", ""},
    {"checkpoint.optimizer", "", "not <save_only_model>", "", "false saves the model alone."},
    {"checkpoint.keep", "", "<save_total_limit>", "max_to_keep", ""},
    {"checkpoint.keep_best", "", "<load_best_model_at_end>", "save_top_k", ""},
    {"checkpoint.resume", "distributed.checkpoint.load", "<resume_from_checkpoint>", "", ""},

    {"log.level", "", "<log_level>", "", ""},
    {"log.trace", "<profiler>.<profile>(schedule)", "", "", ""},
    {"log.metrics", "", "<report_to>", "", ""},
};

void add_words(std::string_view list, std::vector<std::string_view>& words) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(' '), list.size());
    words.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

void add_marked(std::string_view name, std::vector<std::string_view>& words) {
  for (std::size_t begin = name.find('<'); begin != std::string_view::npos; begin = name.find('<', begin + 1)) {
    words.push_back(name.substr(begin + 1, name.find('>', begin) - begin - 1));
  }
}

}  // namespace

std::span<const OtherNames> other_names() { return kOtherNames; }

std::string without_marks(std::string_view name) {
  std::string text(name);
  std::erase_if(text, [](char c) { return c == '<' || c == '>'; });
  return text;
}

std::vector<std::string_view> words_of(const OtherNames& names) {
  std::vector<std::string_view> words;
  add_marked(names.pytorch, words);
  add_marked(names.hugging_face, words);
  add_words(names.words, words);
  return words;
}

}  // namespace mica::train
