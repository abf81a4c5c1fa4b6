// SPDX-License-Identifier: Apache-2.0
// Every config key does something: a row a key sets it to a value of its own and looks at the option, the module or the
// behaviour that comes of it. A key without a row fails, and so does a row without a key.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mica/core/error.hpp"
#include "mica/fsdp/deterministic.hpp"
#include "mica/fsdp/gradient_reduction.hpp"
#include "mica/nn/models/gpt2.hpp"
#include "mica/nn/models/mlp.hpp"
#include "mica/train/config.hpp"
#include "mica/train/model_config.hpp"
#include "mica/train/setup.hpp"
#include "mica/train/start_plan.hpp"
#include "mica/train/step_runner.hpp"

#include "support/mpi_test.hpp"
#include "support/paths.hpp"

namespace mica::train {
namespace {

using ::testing::HasSubstr;

/// 4000 tokens below 61, this rank's own file while it lives.
class Tokens {
 public:
  Tokens() : path_((std::filesystem::temp_directory_path() / ("mica-keys" + std::to_string(::getpid()) + ".bin")).string()) {
    std::ofstream file(path_, std::ios::binary);
    for (int i = 0; i < 4000; ++i) file.put(static_cast<char>(i * 7 % 61)).put(0);
  }
  ~Tokens() { std::filesystem::remove(path_); }
  Tokens(const Tokens&) = delete;
  Tokens& operator=(const Tokens&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

const std::string& tokens_path() {
  static const Tokens tokens;
  return tokens.path();
}

/// An MLP in place of the GPT-2 of config_of(), without heads or a context.
const std::string kMlp = "--model.type=mlp --model.heads=4 --model.context=128";

/// A small GPT-2, with a flag or several ("--a.b=c --d.e=f") on top.
Config config_of(const std::string& flags) {
  std::vector<std::string> overrides{"--model.layers=3",   "--model.heads=2",   "--model.width=16",      "--model.vocab_size=61",
                                     "--model.context=32", "--train.seq_len=8", "--train.micro_batch=2", "--data.train=" + tokens_path(),
                                     "--train.steps=10",   "--mesh.threads=1"};
  std::istringstream words(flags);
  for (std::string word; words >> word;) overrides.push_back(word);
  Config config = parse_config({}, overrides);
  check_config(config);
  return config;
}

fsdp::Options options_of(const std::string& flags) { return fsdp_options(config_of(flags)); }

/// What a run on this rank is made of.
struct Setup {
  explicit Setup(const std::string& flags)
      : config(config_of(flags)),
        device(Device::make(config, testing::session(), world, Logger())),
        model(ShardedModel::make(config, device)) {
    model.root->initialize(config.run.seed);
  }
  ~Setup() { model.context.compute.synchronize(); }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  mpi::Communicator world = mpi::Communicator::world();
  Config config;
  Device device;
  ShardedModel model;
};

/// Of the optimizer's only group.
double optimizer_option(const std::string& flags, const std::string& name) {
  Setup setup(flags);
  return setup.model.optimizer->group_options(setup.model.optimizer->groups()[0]).at(name);
}

double lr_at(const std::string& flags, std::int64_t step) { return make_schedule(config_of(flags)).at(step); }

nn::Gpt2Config gpt2_of(const std::string& flags) {
  const std::unique_ptr<nn::Module> module = make_module(config_of(flags));
  return dynamic_cast<const nn::Gpt2&>(*module).config();
}
nn::LlamaConfig llama_of(const std::string& flags) { return llama_config(config_of("--model.type=llama " + flags).model); }

template <class Action>
std::string refusal_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "not refused";
}

/// Scale of the loss after so many steps without an overflow.
double loss_scale_after(const std::string& flags, int steps) {
  Setup setup("--fsdp.param_dtype=fp16 " + flags);
  for (int step = 0; step < steps; ++step) {
    setup.model.scaler->unscale();
    setup.model.scaler->update();
  }
  return setup.model.scaler->state().scale;
}

/// How many units are reduced in a step of two micro-batches, over the units there are.
int reductions_a_unit(const std::string& flags) {
  Setup setup(flags);
  const Datasets datasets = Datasets::open(setup.config);
  const data::BatchPlan plan{.micro_batch = 2, .accumulation = 2, .num_ranks = setup.world.num_ranks()};
  StepRunner runner(setup.config, setup.model, datasets.train, plan, setup.world.rank());
  int reductions = 0;
  setup.model.root->set_after_reduction([&](fsdp::UnitStorage&) { ++reductions; });
  static_cast<void>(runner.run(1, 1e-3));
  setup.model.context.compute.synchronize();
  return reductions / static_cast<int>(setup.model.root->units().size());
}

/// Names of parameters that are not trained.
std::vector<std::string> frozen_in(const std::string& flags) {
  std::vector<std::string> frozen;
  make_module(config_of(flags))->for_each_parameter([&](const std::string& name, nn::Parameter& parameter) {
    if (!parameter.requires_grad) frozen.push_back(name);
  });
  return frozen;
}

/// The first row's parameters' shape, or any other, by name.
Shape shape_of(const std::string& flags, const std::string& name) {
  Shape found{0};
  make_module(config_of(flags))->for_each_parameter([&](const std::string& each, nn::Parameter& parameter) {
    if (each == name) found = parameter.shape;
  });
  return found;
}

struct Row {
  std::string key;
  std::function<void()> check;
};

/// Keys of whole runs and of GPUs: a test elsewhere sets them.
Row tested_in(const std::string& key, const std::string& file, const std::string& text) {
  return {key, [=] {
            std::ifstream source(test::source_folder() + "/tests/" + file);
            std::ostringstream all;
            all << source.rdbuf();
            EXPECT_NE(all.str().find(text), std::string::npos) << "tests/" << file << " is to test it with " << text;
          }};
}

std::vector<Row> rows() {
  using fsdp::BackwardPrefetch;
  using fsdp::CpuOffload;
  using fsdp::Strategy;
  const std::string figures = "fault/figures_test.cpp";
  return {
      {"run.name", [] { EXPECT_EQ(config_of("--run.name=other").run_folder(), "runs/other"); }},
      {"run.dir", [] { EXPECT_EQ(config_of("--run.name=other --run.dir=there").run_folder(), "there"); }},
      tested_in("run.take_over", "unit/train/run_lock_test.cpp", ".take_over = takes_over"),
      {"run.seed", [] { EXPECT_EQ(Setup("--run.seed=17").model.context.seed, 17u); }},  // data order: fault/figures_test.cpp

      {"mesh.device",
       [] {
         EXPECT_FALSE(Setup("--mesh.device=cpu").device.gpu);
         if (list_gpus().empty()) {
           EXPECT_THAT(refusal_of([] { Setup("--mesh.device=cuda"); }), HasSubstr("no GPU can be used"));
         }
       }},
      {"mesh.backend",
       [] {
         EXPECT_THAT(refusal_of([] { Setup("--mesh.device=cpu --mesh.backend=nccl"); }), HasSubstr("mesh.backend = nccl"));
         for (const std::string backend : {"auto", "mpi", "shared"}) {  // the whole: tests/fault/shared_memory_test.cpp
           const Setup setup("--mesh.device=cpu --mesh.backend=" + backend);
           const bool shares = backend == "shared" || (backend == "auto" && setup.world.num_ranks() > 1);
           EXPECT_EQ(setup.device.backend, shares ? "shared" : "mpi");
           for (const fsdp::Unit* unit : setup.model.root->units()) {
             EXPECT_EQ(unit->storage()->shares_masters(), shares && setup.world.num_ranks() > 1);
           }
         }
       }},
      tested_in("mesh.timeout", "fault/hang_test.cpp", "mesh.timeout"),
      {"mesh.register_buffers",
       [] {
         EXPECT_TRUE(Setup("").device.registers_buffers);
         EXPECT_FALSE(Setup("--mesh.register_buffers=false").device.registers_buffers);
       }},
      {"mesh.shard_size",
       [] {
         const Setup setup("--mesh.shard_size=1 --fsdp.strategy=hybrid_shard");
         EXPECT_EQ(setup.device.mesh->shard_size(), 1);
         EXPECT_EQ(setup.device.mesh->replicas(), setup.world.num_ranks());
         EXPECT_EQ(Setup("").device.mesh->shard_size(), setup.world.num_ranks());
       }},
      {"mesh.streams",
       [] {
         EXPECT_EQ(Setup("--mesh.streams=inline").device.device_mesh->streams().mode, StreamMode::inlined);
         EXPECT_EQ(Setup("--mesh.streams=threaded").device.device_mesh->streams().mode, StreamMode::threaded);
       }},
      {"mesh.threads",
       [] {
         EXPECT_EQ(Setup("--mesh.threads=3").device.num_threads, 3);
         EXPECT_EQ(Setup("--mesh.threads=2").device.num_threads, 2);
       }},

      {"model.type",
       [] {
         EXPECT_EQ(block_type(config_of("--model.type=llama --model.rms_eps=1e-6").model), "llama_block");
         EXPECT_EQ(block_type(config_of(kMlp).model), "mlp_block");
         EXPECT_NE(dynamic_cast<nn::Mlp*>(make_module(config_of(kMlp)).get()), nullptr);
         EXPECT_NE(dynamic_cast<nn::Llama*>(make_module(config_of("--model.type=llama")).get()), nullptr);
       }},
      {"model.layers", [] { EXPECT_EQ(gpt2_of("--model.layers=5").layers, 5); }},
      {"model.heads",
       [] {
         EXPECT_EQ(gpt2_of("--model.heads=8").heads, 8);
         EXPECT_EQ(llama_of("--model.heads=8").heads, 8);
       }},
      {"model.kv_heads", [] { EXPECT_EQ(llama_of("--model.kv_heads=1").num_kv_heads(), 1); }},
      {"model.head_dim", [] { EXPECT_EQ(llama_of("--model.head_dim=6").head_size(), 6); }},
      {"model.width",
       [] {
         EXPECT_EQ(gpt2_of("--model.width=24").width, 24);
         EXPECT_EQ(llama_of("--model.width=24").width, 24);
         EXPECT_EQ(shape_of(kMlp + " --model.width=24", "embed.weight"), (Shape{61, 24}));
       }},
      {"model.intermediate_size",
       [] {
         EXPECT_EQ(llama_of("--model.intermediate_size=20").intermediate_size, 20);
         EXPECT_EQ(llama_of("").intermediate_size, 64) << "4 * width";
       }},
      {"model.vocab_size",
       [] {
         EXPECT_EQ(gpt2_of("--model.vocab_size=77").vocab_size, 77);
         EXPECT_EQ(llama_of("--model.vocab_size=77").vocab_size, 77);
         EXPECT_THAT(refusal_of([] {
                       const Config config = config_of("--model.vocab_size=60");
                       const Datasets datasets = Datasets::open(config);
                       data::Batch batch;
                       for (std::int64_t i = 0; i < datasets.train.num_sequences(); ++i) {
                         data::read_batch(datasets.train, std::vector<data::SampledSequence>{{i, 0, i}}, batch);
                       }
                     }),
                     HasSubstr("vocab_size is 60"));
       }},
      {"model.context",
       [] {
         EXPECT_EQ(gpt2_of("--model.context=40").context, 40);
         EXPECT_EQ(llama_of("--model.context=40").context, 40);
       }},
      {"model.tie_embeddings",
       [] {
         EXPECT_FALSE(gpt2_of("--model.tie_embeddings=false").tie_embeddings);
         EXPECT_TRUE(gpt2_of("--model.tie_embeddings=true").tie_embeddings);
         EXPECT_FALSE(llama_of("--model.tie_embeddings=false").tie_embeddings);
       }},
      {"model.dropout", [] { EXPECT_EQ(gpt2_of("--model.dropout=0.25").dropout, 0.25); }},
      {"model.rms_eps", [] { EXPECT_EQ(llama_of("--model.rms_eps=1e-3").rms_eps, 1e-3); }},
      {"model.rope_theta", [] { EXPECT_EQ(llama_of("--model.rope_theta=77").rotary.theta, 77); }},
      {"model.rope_scaling",
       [] {
         EXPECT_EQ(llama_of("--model.rope_scaling=llama3").rotary.scaling, nn::RotaryOptions::Scaling::llama3);
         EXPECT_NE(llama_of("").rotary.scaling, nn::RotaryOptions::Scaling::llama3);
       }},
      {"model.rope_factor", [] { EXPECT_EQ(llama_of("--model.rope_scaling=llama3 --model.rope_factor=3").rotary.factor, 3); }},
      {"model.rope_low_freq_factor",
       [] { EXPECT_EQ(llama_of("--model.rope_scaling=llama3 --model.rope_low_freq_factor=2").rotary.low_freq_factor, 2); }},
      {"model.rope_high_freq_factor",
       [] { EXPECT_EQ(llama_of("--model.rope_scaling=llama3 --model.rope_high_freq_factor=5").rotary.high_freq_factor, 5); }},
      {"model.rope_original_context",
       [] { EXPECT_EQ(llama_of("--model.rope_scaling=llama3 --model.rope_original_context=99").rotary.original_context, 99); }},
      tested_in("model.init_from", "fault/init_from_test.cpp", "--model.init_from="),

      {"data.train", [] { EXPECT_EQ(Datasets::open(config_of("")).train.num_tokens(), 4000); }},
      {"data.val",
       [] {
         EXPECT_FALSE(Datasets::open(config_of("")).val);
         EXPECT_EQ(Datasets::open(config_of("--data.val=" + tokens_path())).val->num_tokens(), 4000);
       }},
      tested_in("data.order", figures, "--data.order=shuffled"),

      {"fsdp.strategy",
       [] {
         EXPECT_EQ(options_of("--fsdp.strategy=shard_optim").strategy, Strategy::shard_optim);
         EXPECT_EQ(options_of("--fsdp.strategy=shard_grad_op").strategy, Strategy::shard_grad_op);
       }},
      {"fsdp.sharding",
       [] {
         EXPECT_EQ(options_of("").sharding, fsdp::Sharding::flat);
         EXPECT_EQ(options_of("--fsdp.sharding=per_parameter").sharding, fsdp::Sharding::per_parameter);
       }},
      {"fsdp.shard_dims",
       [] {
         const fsdp::Options options = options_of("--fsdp.sharding=per_parameter --fsdp.shard_dims=*.c_fc.weight:1");
         ASSERT_EQ(options.shard_dims.size(), 1u);
         EXPECT_EQ(options.shard_dims[0].dim, 1);
       }},
      {"fsdp.reshard_after_forward",
       [] {
         EXPECT_EQ(options_of("").reshard_after_forward_ranks, 0);
         EXPECT_EQ(options_of("--fsdp.reshard_after_forward=2").reshard_after_forward_ranks, 2);
         EXPECT_THAT(refusal_of([] { options_of("--fsdp.reshard_after_forward=false"); }), HasSubstr("contradicts"));
         EXPECT_THAT(refusal_of([] { options_of("--fsdp.reshard_after_forward=true --fsdp.strategy=shard_grad_op"); }),
                     HasSubstr("contradicts"));
       }},
      {"fsdp.cpu_offload",
       [] {
         EXPECT_EQ(options_of("").cpu_offload, CpuOffload::none);
         EXPECT_EQ(options_of("--fsdp.cpu_offload=gradients").cpu_offload, CpuOffload::gradients);
         EXPECT_EQ(options_of("--fsdp.cpu_offload=parameters").cpu_offload, CpuOffload::parameters);
         EXPECT_EQ(Setup("").device.device_mesh->offload().pool->stats().current, 0);
         EXPECT_GT(Setup("--fsdp.cpu_offload=parameters").device.device_mesh->offload().pool->stats().current, 0);
       }},
      {"fsdp.full_precision_in_eval",
       [] {
         EXPECT_FALSE(options_of("").root->full_precision_in_eval);
         EXPECT_TRUE(options_of("--fsdp.full_precision_in_eval=true").root->full_precision_in_eval);
       }},
      {"fsdp.wrap",
       [] {
         EXPECT_EQ(Setup("").model.root->units().size(), 4u) << "three blocks and the root";
         EXPECT_EQ(Setup("--fsdp.wrap=none").model.root->units().size(), 1u);
         EXPECT_EQ(Setup("--fsdp.wrap=size").model.root->units().size(), 1u) << "100'000'000 elements a unit";
       }},
      {"fsdp.min_numel",
       [] {
         // A block has 3264 elements, its largest module 1088.
         EXPECT_EQ(Setup("--fsdp.wrap=size --fsdp.min_numel=3000").model.root->units().size(), 4u);
         EXPECT_GT(Setup("--fsdp.wrap=size --fsdp.min_numel=1000").model.root->units().size(), 6u);
       }},
      {"fsdp.backward_prefetch",
       [] {
         EXPECT_EQ(options_of("").backward_prefetch, BackwardPrefetch::pre);
         EXPECT_EQ(options_of("--fsdp.backward_prefetch=post").backward_prefetch, BackwardPrefetch::post);
         EXPECT_EQ(options_of("--fsdp.backward_prefetch=none").backward_prefetch, BackwardPrefetch::none);
       }},
      {"fsdp.forward_prefetch",
       [] {
         EXPECT_FALSE(options_of("").forward_prefetch);
         EXPECT_TRUE(options_of("--fsdp.forward_prefetch=true").forward_prefetch);
       }},
      {"fsdp.limit_all_gathers",
       [] {
         EXPECT_TRUE(options_of("").root->limit_all_gathers);
         EXPECT_FALSE(options_of("--fsdp.limit_all_gathers=false").root->limit_all_gathers);
       }},
      {"fsdp.param_dtype", [] { EXPECT_EQ(options_of("--fsdp.param_dtype=bf16").param_dtype(), DType::bf16); }},
      {"fsdp.reduce_dtype", [] { EXPECT_EQ(options_of("--fsdp.reduce_dtype=bf16").reduce_dtype(), DType::bf16); }},
      {"fsdp.buffer_dtype", [] { EXPECT_EQ(options_of("--fsdp.buffer_dtype=bf16").mixed_precision.buffer_dtype, DType::bf16); }},
      {"fsdp.keep_low_precision_grads",
       [] {
         EXPECT_EQ(options_of("--fsdp.reduce_dtype=bf16").grad_dtype(), DType::f32);
         EXPECT_EQ(options_of("--fsdp.reduce_dtype=bf16 --fsdp.keep_low_precision_grads=true").grad_dtype(), DType::bf16);
       }},
      {"fsdp.use_orig_params",
       [] {
         EXPECT_FALSE(options_of("").root->use_orig_params);
         EXPECT_TRUE(options_of("--fsdp.use_orig_params=true").root->use_orig_params);
       }},
      {"fsdp.gradient_compression",
       [] {
         EXPECT_EQ(options_of("").reduction, nullptr);
         EXPECT_EQ(options_of("--fsdp.gradient_compression=fp16").reduction, &fsdp::compressing_reduction(DType::f16));
         EXPECT_EQ(options_of("--fsdp.gradient_compression=bf16").reduction->wire_dtype(), DType::bf16);
       }},
      {"fsdp.activation_checkpointing",
       [] {
         const auto checkpointed = [](const std::string& flags) {
           std::vector<std::string> names;
           make_module(config_of(flags))->for_each_module([&](const std::string& name, nn::Module& each) {
             if (each.is_checkpointed()) names.push_back(name);
           });
           return names;
         };
         EXPECT_THAT(checkpointed(""), ::testing::IsEmpty());
         EXPECT_THAT(checkpointed("--fsdp.activation_checkpointing=block"),
                     ::testing::ElementsAre("transformer.h.0", "transformer.h.1", "transformer.h.2"));
         EXPECT_THAT(checkpointed("--fsdp.activation_checkpointing=2"), ::testing::ElementsAre("transformer.h.0", "transformer.h.1"));
         EXPECT_THAT(refusal_of([&] { checkpointed("--fsdp.activation_checkpointing=4"); }),
                     HasSubstr("fsdp.activation_checkpointing is 4, but the model has 3 blocks"));
       }},
      {"fsdp.recompute",
       [] {
         EXPECT_EQ(Setup("--fsdp.recompute=none").model.context.recompute, nn::Recompute::none);
         EXPECT_EQ(Setup("--fsdp.recompute=cheap").model.context.recompute, nn::Recompute::cheap);
       }},
      {"fsdp.sync_module_states",
       [] {
         EXPECT_FALSE(options_of("").sync_module_states);
         EXPECT_TRUE(options_of("--fsdp.sync_module_states=true").sync_module_states);
       }},
      {"fsdp.freeze",
       [] {
         EXPECT_THAT(frozen_in(""), ::testing::IsEmpty());
         EXPECT_THAT(frozen_in("--fsdp.freeze=*wpe*,*ln_f.bias"),
                     ::testing::ElementsAre("transformer.wpe.weight", "transformer.ln_f.bias"));
       }},
      {"fsdp.ignore",
       [] {
         EXPECT_THAT(frozen_in("--fsdp.ignore=*wpe*"), ::testing::ElementsAre("transformer.wpe.weight")) << "nothing reduces it";
         const Setup setup("--fsdp.ignore=*wpe*");
         ASSERT_EQ(setup.model.root->ignored_parameters().size(), 1u);
         EXPECT_EQ(setup.model.root->ignored_parameters()[0].full_name, "transformer.wpe.weight");
       }},

      {"optim.type",
       [] {
         EXPECT_EQ(Setup("--optim.type=sgd").model.optimizer->name(), "sgd");
         EXPECT_EQ(Setup("--optim.type=adam").model.optimizer->name(), "adam");
         EXPECT_EQ(Setup("").model.optimizer->name(), "adamw");
       }},
      {"optim.lr", [] { EXPECT_EQ(lr_at("--optim.lr=0.25 --optim.schedule=constant", 1), 0.25); }},
      {"optim.beta1", [] { EXPECT_EQ(optimizer_option("--optim.beta1=0.5", "beta1"), 0.5); }},
      {"optim.beta2", [] { EXPECT_EQ(optimizer_option("--optim.beta2=0.5", "beta2"), 0.5); }},
      {"optim.eps", [] { EXPECT_EQ(optimizer_option("--optim.eps=0.5", "eps"), 0.5); }},
      {"optim.momentum", [] { EXPECT_EQ(optimizer_option("--optim.type=sgd --optim.momentum=0.5", "momentum"), 0.5); }},
      {"optim.nesterov",
       [] {
         EXPECT_EQ(optimizer_option("--optim.type=sgd --optim.momentum=0.5", "nesterov"), 0);
         EXPECT_EQ(optimizer_option("--optim.type=sgd --optim.momentum=0.5 --optim.nesterov=true", "nesterov"), 1);
       }},
      {"optim.state_dtype",
       [] {
         const auto dtypes = [](const std::string& flags) { return Setup(flags).model.optimizer->state_dtypes(); };
         EXPECT_EQ(dtypes(""), (std::vector<DType>{DType::f32, DType::f32}));
         EXPECT_EQ(dtypes("--optim.state_dtype=bf16"), (std::vector<DType>{DType::bf16, DType::bf16}));
         EXPECT_EQ(dtypes("--optim.state_dtype=int8"), (std::vector<DType>{DType::moment8, DType::square8}));
         EXPECT_EQ(dtypes("--optim.type=sgd --optim.momentum=0.5 --optim.state_dtype=bf16"), std::vector<DType>{DType::bf16});
         EXPECT_THAT(refusal_of([&] { dtypes("--optim.type=sgd --optim.state_dtype=bf16"); }), HasSubstr("keeps no state"));
         for (const char* flags : {"", "--optim.state_dtype=bf16", "--optim.state_dtype=int8"}) {
           Setup setup(flags);
           const data::BatchPlan batch{.micro_batch = 2, .num_ranks = setup.world.num_ranks()};
           const StartPlan plan = make_start_plan(setup.config, setup.device, setup.model, batch);
           setup.model.optimizer->allocate_state();
           EXPECT_EQ(plan.memory.peak_of(MemoryRole::optimizer), setup.device.pool->stats().current_of(MemoryRole::optimizer)) << flags;
         }
       }},
      {"optim.weight_decay",
       [] {
         EXPECT_EQ(optimizer_option("--optim.weight_decay=0.5", "weight_decay"), 0.5);
         EXPECT_EQ(optimizer_option("--optim.type=sgd --optim.weight_decay=0.25", "weight_decay"), 0.25);
       }},
      tested_in("optim.grad_clip", "reference/training.json", "\"optim.grad_clip\": 0.75"),
      {"optim.in_backward",
       [] {
         EXPECT_EQ(Setup("").model.in_backward, nullptr);
         EXPECT_NE(Setup("--optim.in_backward=true --optim.grad_clip=0 --fsdp.use_orig_params=true").model.in_backward, nullptr);
       }},
      {"optim.loss_scale",
       [] {
         EXPECT_EQ(Setup("--fsdp.param_dtype=bf16").model.scaler, nullptr) << "nothing is fp16";
         EXPECT_EQ(loss_scale_after("--optim.loss_scale=1024", 0), 1024);
       }},
      {"optim.loss_scale_interval",
       [] {
         EXPECT_EQ(loss_scale_after("--optim.loss_scale=1024", 3), 1024);
         EXPECT_EQ(loss_scale_after("--optim.loss_scale=1024 --optim.loss_scale_interval=3", 2), 1024);
         EXPECT_EQ(loss_scale_after("--optim.loss_scale=1024 --optim.loss_scale_interval=3", 3), 2048);
       }},
      {"optim.schedule",
       [] {
         EXPECT_EQ(lr_at("--optim.lr=1 --optim.schedule=linear", 4), 1 - 0.4);
         EXPECT_EQ(lr_at("--optim.lr=1 --optim.schedule=constant", 4), 1);
         EXPECT_NEAR(lr_at("--optim.lr=1 --optim.schedule=cosine", 4), 0.6545084971874737, 1e-12);  // (1 + cos(0.4 pi)) / 2
       }},
      {"optim.warmup_steps", [] { EXPECT_EQ(lr_at("--optim.lr=1 --optim.warmup_steps=4", 1), 0.25); }},
      {"optim.min_lr", [] { EXPECT_EQ(lr_at("--optim.lr=1 --optim.min_lr=0.125", 10), 0.125); }},

      {"train.steps",
       [] {
         EXPECT_EQ(lr_at("--optim.lr=1 --optim.schedule=linear --train.steps=4", 1), 0.75);
         EXPECT_EQ(lr_at("--optim.lr=1 --optim.schedule=linear --train.steps=5", 5), 0);
       }},
      tested_in("train.micro_batch", figures, "--train.micro_batch="),
      {"train.seq_len", [] { EXPECT_EQ(Datasets::open(config_of("--train.seq_len=20")).train.num_sequences(), 199); }},
      tested_in("train.global_batch", figures, "global_batch = 8"),
      {"train.gradient_sync",
       [] {
         EXPECT_EQ(reductions_a_unit("--train.gradient_sync=reduce_each"), 2);
         EXPECT_EQ(reductions_a_unit("--train.gradient_sync=no_sync"), 1);
       }},
      {"train.deterministic", [] { EXPECT_TRUE(options_of("--train.deterministic=true").root->deterministic); }},
      {"train.reproducible",
       [] {
         EXPECT_THAT(refusal_of([] { config_of("--train.reproducible=false --train.deterministic=true"); }),
                     HasSubstr("train.reproducible"));
       }},
      {"train.tf32", [] { EXPECT_TRUE(config_of("--train.tf32=true").train.tf32); }},  // more only a real GPU's products show
      tested_in("train.f32_logits", "gpu/training_test.cpp", "f32_logits"),
      tested_in("train.drift_interval", "fault/run_control_test.cpp", "--train.drift_interval="),
      tested_in("train.eval_interval", figures, "--train.eval_interval=4"),
      tested_in("train.eval_batches", figures, "--train.eval_batches="),
      tested_in("train.log_interval", figures, "--train.log_interval=3"),
      tested_in("train.max_hours", "fault/run_control_test.cpp", "--train.max_hours="),
      tested_in("train.on_bad_step", "fault/bad_steps_test.cpp", "--train.on_bad_step="),
      tested_in("train.grad_norm_spike", "fault/bad_steps_test.cpp", "--train.grad_norm_spike="),

      tested_in("checkpoint.interval", figures, "--checkpoint.interval=3"),
      tested_in("checkpoint.interval_minutes", "fault/resume_test.cpp", "--checkpoint.interval_minutes="),
      tested_in("checkpoint.async", "fault/resume_test.cpp", "training stalled"),
      tested_in("checkpoint.optimizer", "fault/init_from_test.cpp", "--checkpoint.optimizer=false"),
      tested_in("checkpoint.keep", figures, "--checkpoint.keep=2"),
      tested_in("checkpoint.keep_every", "fault/retention_test.cpp", "--checkpoint.keep_every=6"),
      tested_in("checkpoint.keep_best", "fault/retention_test.cpp", "--checkpoint.keep_best=1"),
      tested_in("checkpoint.resume", "fault/bad_input_test.cpp", "--checkpoint.resume=none"),
      tested_in("checkpoint.allow_data_change", "fault/run_control_test.cpp", "--checkpoint.allow_data_change=true"),
      tested_in("checkpoint.emergency", "fault/lost_ranks_test.cpp", "--checkpoint.emergency=false"),

      tested_in("log.level", "fault/run_control_test.cpp", "--log.level=error"),
      tested_in("log.trace", "fault/run_control_test.cpp", "--log.trace="),
      tested_in("log.metrics", figures, "--log.metrics=false"),
      tested_in("log.tensorboard", figures, "--log.tensorboard=true"),
  };
}

std::vector<std::string> all_keys() {
  std::vector<std::string> keys;
  std::istringstream lines(to_ini(Config{}));
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) section = line.substr(1, line.size() - 2);
    if (const std::size_t equals = line.find(" ="); equals != std::string::npos) keys.push_back(section + "." + line.substr(0, equals));
  }
  return keys;
}

TEST(Keys, EveryKeyHasARow) {
  std::vector<std::string> with_rows;
  for (const Row& row : rows()) with_rows.push_back(row.key);
  EXPECT_THAT(with_rows, ::testing::UnorderedElementsAreArray(all_keys())) << "a new key wants a row, and a row a key";
}

TEST(Keys, EachDoesWhatItSays) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.key);
    row.check();
  }
}

}  // namespace
}  // namespace mica::train
