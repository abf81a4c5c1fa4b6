// SPDX-License-Identifier: Apache-2.0
#include "config_other_names.hpp"

namespace mica::train {
namespace {

constexpr OtherNames kOtherNames[] = {
    {"run.name", "", "run_name"},
    {"run.dir", "", "output_dir"},
    {"run.seed", "manual_seed", "seed, data_seed"},

    {"mesh.device", "FSDP1 device_id", "use_cpu"},
    {"mesh.backend", "init_process_group(backend)", "ddp_backend"},
    {"mesh.timeout", "init_process_group(timeout)", "ddp_timeout"},
    {"mesh.register_buffers", "FSDP2 set_allocate_memory_from_process_group_for_comm", ""},
    {"mesh.shard_size", "init_device_mesh((replicas, shard_size))", "accelerate ParallelismConfig(dp_shard_size)"},
    {"mesh.threads", "set_num_threads", "accelerate launch --num_cpu_threads_per_process"},

    {"model.type", "", "config.json model_type"},
    {"model.layers", "", "config.json num_hidden_layers, n_layer"},
    {"model.heads", "", "config.json num_attention_heads, n_head"},
    {"model.kv_heads", "", "config.json num_key_value_heads"},
    {"model.head_dim", "", "config.json head_dim"},
    {"model.width", "", "config.json hidden_size, n_embd"},
    {"model.intermediate_size", "", "config.json intermediate_size, n_inner"},
    {"model.vocab_size", "", "config.json vocab_size"},
    {"model.context", "", "config.json max_position_embeddings, n_positions"},
    {"model.tie_embeddings", "", "config.json tie_word_embeddings"},
    {"model.dropout", "Dropout(p)", "config.json embd_pdrop, resid_pdrop, attn_pdrop"},
    {"model.rms_eps", "RMSNorm(eps)", "config.json rms_norm_eps"},
    {"model.rope_theta", "", "config.json rope_theta"},
    {"model.rope_scaling", "", "config.json rope_scaling.rope_type"},
    {"model.rope_factor", "", "config.json rope_scaling.factor"},
    {"model.rope_low_freq_factor", "", "config.json rope_scaling.low_freq_factor"},
    {"model.rope_high_freq_factor", "", "config.json rope_scaling.high_freq_factor"},
    {"model.rope_original_context", "", "config.json rope_scaling.original_max_position_embeddings"},
    {"model.init_from", "load_state_dict", "from_pretrained"},

    {"data.train", "DataLoader(dataset)", "Trainer(train_dataset)"},
    {"data.val", "", "Trainer(eval_dataset)"},
    {"data.order", "DistributedSampler(shuffle)", "train_sampling_strategy"},

    {"fsdp.strategy", "FSDP1 sharding_strategy", "fsdp; accelerate fsdp_sharding_strategy"},
    {"fsdp.sharding", "flat: FSDP1, per_parameter: FSDP2", "accelerate fsdp_version"},
    {"fsdp.shard_dims", "FSDP2 shard_placement_fn", ""},
    {"fsdp.reshard_after_forward", "FSDP2 reshard_after_forward", "accelerate fsdp_reshard_after_forward"},
    {"fsdp.cpu_offload", "FSDP1 cpu_offload, FSDP2 offload_policy", "fsdp=offload; accelerate fsdp_offload_params"},
    {"fsdp.full_precision_in_eval", "environment FSDP_USE_FULL_PREC_IN_EVAL", ""},
    {"fsdp.wrap", "FSDP1 auto_wrap_policy", "fsdp=auto_wrap; accelerate fsdp_auto_wrap_policy"},
    {"fsdp.min_numel", "size_based_auto_wrap_policy(min_num_params)", "fsdp_config min_num_params"},
    {"fsdp.backward_prefetch", "FSDP1 backward_prefetch", "fsdp_config backward_prefetch"},
    {"fsdp.forward_prefetch", "FSDP1 forward_prefetch", "fsdp_config forward_prefetch"},
    {"fsdp.limit_all_gathers", "FSDP1 limit_all_gathers", "fsdp_config limit_all_gathers"},
    {"fsdp.param_dtype", "FSDP1 MixedPrecision(param_dtype), FSDP2 MixedPrecisionPolicy(param_dtype)", "bf16, fp16"},
    {"fsdp.reduce_dtype", "FSDP1 MixedPrecision(reduce_dtype), FSDP2 MixedPrecisionPolicy(reduce_dtype)", ""},
    {"fsdp.buffer_dtype", "FSDP1 MixedPrecision(buffer_dtype)", ""},
    {"fsdp.keep_low_precision_grads", "FSDP1 MixedPrecision(keep_low_precision_grads)", ""},
    {"fsdp.use_orig_params", "FSDP1 use_orig_params", "fsdp_config use_orig_params"},
    {"fsdp.gradient_compression", "register_comm_hook(fp16_compress_hook, bf16_compress_hook)", ""},
    {"fsdp.activation_checkpointing", "apply_activation_checkpointing", "gradient_checkpointing; fsdp_config activation_checkpointing"},
    {"fsdp.recompute", "create_selective_checkpoint_contexts", ""},
    {"fsdp.sync_module_states", "FSDP1 sync_module_states", "fsdp_config sync_module_states"},
    {"fsdp.freeze", "requires_grad_(False)", ""},
    {"fsdp.ignore", "FSDP1 ignored_states, FSDP2 ignored_params", ""},

    {"optim.type", "optim.AdamW, optim.Adam, optim.SGD", "optim"},
    {"optim.lr", "lr", "learning_rate"},
    {"optim.beta1", "betas[0]", "adam_beta1"},
    {"optim.beta2", "betas[1]", "adam_beta2"},
    {"optim.eps", "eps", "adam_epsilon"},
    {"optim.momentum", "SGD(momentum)", ""},
    {"optim.nesterov", "SGD(nesterov)", ""},
    {"optim.weight_decay", "weight_decay", "weight_decay"},
    {"optim.grad_clip", "clip_grad_norm_(max_norm)", "max_grad_norm"},
    {"optim.in_backward", "_apply_optimizer_in_backward", ""},
    {"optim.loss_scale", "GradScaler(init_scale)", ""},
    {"optim.loss_scale_interval", "GradScaler(growth_interval)", ""},
    {"optim.schedule", "optim.lr_scheduler", "lr_scheduler_type"},
    {"optim.warmup_steps", "", "warmup_steps"},
    {"optim.min_lr", "CosineAnnealingLR(eta_min)", "lr_scheduler_kwargs min_lr"},

    {"train.steps", "", "max_steps"},
    {"train.micro_batch", "DataLoader(batch_size)", "per_device_train_batch_size"},
    {"train.seq_len", "", "trl SFTConfig(max_length)"},
    {"train.global_batch", "", "per_device_train_batch_size x gradient_accumulation_steps x ranks"},
    {"train.gradient_sync", "FSDP1 no_sync, FSDP2 set_requires_gradient_sync", "accelerate GradientAccumulationPlugin(sync_each_batch)"},
    {"train.tf32", "backends.cuda.matmul.allow_tf32", "tf32"},
    {"train.reproducible", "use_deterministic_algorithms", "full_determinism"},
    {"train.eval_interval", "", "eval_steps"},
    {"train.log_interval", "", "logging_steps"},

    {"checkpoint.interval", "", "save_steps"},
    {"checkpoint.async", "distributed.checkpoint.async_save", ""},
    {"checkpoint.optimizer", "", "not save_only_model"},
    {"checkpoint.keep", "", "save_total_limit"},
    {"checkpoint.resume", "distributed.checkpoint.load", "resume_from_checkpoint"},

    {"log.level", "", "log_level"},
    {"log.trace", "profiler.profile(schedule)", ""},
    {"log.metrics", "", "report_to"},
};

}  // namespace

std::span<const OtherNames> other_names() { return kOtherNames; }

}  // namespace mica::train
