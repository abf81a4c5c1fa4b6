// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <random>
#include <sstream>

#include "mica/comm/fake_group.hpp"
#include "mica/fsdp/deterministic.hpp"
#include "mica/nn/init.hpp"
#include "mica/train/setup.hpp"

#include "bench_model.hpp"
#include "benches.hpp"
#include "command_line.hpp"
#include "report.hpp"
#include "timing.hpp"

namespace mica::train::bench {
namespace {

constexpr const char* kOverheadHelp = R"(mica-bench overhead [--flags]

What sharding costs: forward and backward of a GPT-2 sharded over all ranks, compared with an unsharded model on every rank at the same
time (no optimizer in either case). 100 % would mean that sharding is free. The variants take turns with the unsharded model, so that a
busy machine slows all of them alike:
  flat, per_parameter               values of fsdp.sharding
  use_orig_params, deterministic    fsdp.use_orig_params or train.deterministic, with fsdp.sharding=flat
The last column compares with flat, round by round.

  export OMP_NUM_THREADS=1
  mpirun -np 2 mica-bench overhead --model gpt2-124m --batch 4 --seq 256 --variants flat,per_parameter
  mica-bench overhead --units 200 --numel 10000      the runtime's own host time per unit and step: no communication,
                                                     inline streams, layers that compute next to nothing
)";

struct OverheadOptions {
  RunOptions run{.model = "char-tiny", .batch = 4, .seq = 64};
  std::string variants = "flat,per_parameter,use_orig_params,deterministic";
  std::int64_t rounds = 5;
  std::int64_t units = 0;
  std::int64_t numel = 10'000;
};

/// One way of running forward and backward, and its times.
struct Variant {
  std::string name;
  std::function<void()> step;
  std::vector<double> seconds{};
};

/// Runs all variants in turn, each timed over all ranks together.
void take_turns(const App& app, std::vector<Variant>& variants, std::int64_t rounds) {
  for (std::int64_t round = -1; round < rounds; ++round) {  // the first round allocates
    for (Variant& variant : variants) {
      const double seconds = timed_together(app.world, variant.step);
      if (round >= 0) variant.seconds.push_back(seconds);
    }
  }
}

/// The key that selects a variant. @throws ConfigError listing the names.
std::string override_of(const std::string& variant) {
  if (variant == "flat" || variant == "per_parameter") return "--fsdp.sharding=" + variant;
  if (variant == "use_orig_params") return "--fsdp.use_orig_params=true";
  require<ConfigError>(variant == "deterministic",
                       "--variants names '{}', expected some of flat, per_parameter, use_orig_params, deterministic", variant);
  return "--train.deterministic=true";
}

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream text(list);
  for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  return names;
}

/// Speed of the second variant in percent of the first's: the median over rounds.
double percent(const Variant& first, const Variant& second) {
  std::vector<double> shares;
  for (std::size_t i = 0; i < second.seconds.size(); ++i) shares.push_back(100 * first.seconds[i] / second.seconds[i]);
  return rounded(median(shares), 1);
}

void bench_model_overhead(App& app, const OverheadOptions& options) {
  const std::vector<std::string> names = names_in(options.variants);
  Config config;
  app.comm.agree([&] {
    config = make_config(options.run);
    config.mesh.device = "cpu";  // its tokens are in host memory
    for (const std::string& name : names) static_cast<void>(override_of(name));
  });
  Device device = make_device(app, config);
  const Shape shape{config.train.micro_batch, config.train.seq_len};
  std::mt19937 random(static_cast<unsigned>(1 + app.world.rank()));
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.numel()));
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(config.model.vocab_size));
  const auto pass = [&](nn::Module& module, nn::Context& context) {
    context.sequences.assign(static_cast<std::size_t>(shape[0]), 0);
    nn::Record record;
    const nn::Tensors ys = module.forward(
        context, {Tensor(TensorView{tokens.data(), shape, DType::i32}), Tensor(TensorView{tokens.data(), shape, DType::i32})}, &record);
    const Tensor dloss = context.make({1}, DType::f32, MemoryRole::workspace);
    context.kernels.fill(context.compute, dloss, 1.0);
    module.backward(context, std::move(record), {dloss});
  };

  nn::Context plain_context{.compute = device.device_mesh->compute(), .pool = *device.pool, .kernels = *device.kernels};
  plain_context.loss_in_backward = true;
  plain_context.recompute = recompute_policy(config, device);
  const std::unique_ptr<nn::Module> plain = make_module(config);
  nn::PlainParameters storage(*plain, plain_context, dtype_from_name(config.fsdp.param_dtype), DType::f32);
  std::vector<Variant> variants;
  variants.push_back({"plain", [&] {
                        storage.zero_grad();
                        pass(*plain, plain_context);
                        plain_context.compute.synchronize();
                      }});
  std::vector<std::unique_ptr<ShardedModel>> models;
  for (const std::string& name : names) {
    app.comm.agree([&] {
      RunOptions run = options.run;
      run.overrides.push_back(override_of(name));
      models.push_back(std::make_unique<ShardedModel>(ShardedModel::make(make_config(run), device)));
    });
    ShardedModel& model = *models.back();
    model.root->initialize(1);
    variants.push_back({name, [&] {
                          pass(*model.module, model.context);
                          if (model.root->options().deterministic) fsdp::average_grads(*model.root, app.world.num_ranks());
                          model.root->zero_grad();
                          model.context.compute.synchronize();
                        }});
  }
  take_turns(app, variants, options.rounds);
  Report report(app.world.rank() == 0);
  const auto flat = std::ranges::find(variants, "flat", &Variant::name);
  for (const Variant& variant : variants) {
    report.add({{"bench", "overhead"},
                {"model", options.run.model},
                {"dtype", options.run.dtype},
                {"strategy", config.fsdp.strategy},
                {"ranks", app.world.num_ranks()},
                {"threads", device.num_threads},
                {"variant", variant.name},
                {"step_ms", rounded(1e3 * median(variant.seconds))},
                {"percent_of_plain", percent(variants[0], variant)},
                {"percent_of_flat", flat == variants.end() ? Row() : Row(percent(*flat, variant))}});
  }
  report.print_table();
}

/// y = x, with a weight whose gradient is written: next to no computation.
class TinyLayer final : public nn::Module {
 public:
  explicit TinyLayer(std::int64_t numel)
      : Module("tiny_layer"), weight_(add_parameter("weight", Shape{numel}, nn::Initializer::zeros(), false)) {}

 protected:
  nn::Tensors do_forward(nn::Context&, nn::Tensors xs, nn::Record*) override {
    xs[0].needs_grad = true;
    return xs;
  }
  nn::Tensors do_backward(nn::Context&, nn::Record&, nn::Tensors dys) override {
    static_cast<void>(weight_.write_grad());
    return dys;
  }

 private:
  nn::Parameter& weight_;
};

class TinyLayers final : public nn::Module {
 public:
  TinyLayers(std::int64_t units, std::int64_t numel) : Module("tiny_layers") {
    for (std::int64_t i = 0; i < units; ++i) layers_.push_back(&add_child<TinyLayer>(std::to_string(i), numel));
  }

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record* record) override {
    for (TinyLayer* layer : layers_) xs = layer->forward(context, std::move(xs), nn::child_record(record));
    return xs;
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) override {
    for (std::size_t i = layers_.size(); i-- > 0;) dys = layers_[i]->backward(context, std::move(record.child(i)), std::move(dys));
    return dys;
  }

 private:
  std::vector<TinyLayer*> layers_;
};

void bench_runtime(App& app, const OverheadOptions& options) {
  const auto pool = make_cpu_pool();
  const auto kernels = make_cpu_kernels(*pool);
  Mesh mesh(make_fake_group(0, 2, nullptr), {.world_size = 2, .shard_size = 2, .replicas = 1});
  fsdp::DeviceMesh device_mesh(mesh, *pool, *kernels, fsdp::Streams::make(StreamMode::inlined));
  nn::Context context{.compute = device_mesh.compute(), .pool = *pool, .kernels = *kernels};
  TinyLayers plain(options.units, options.numel), sharded(options.units, options.numel);
  nn::PlainParameters storage(plain, context);
  fsdp::Root& root = fsdp::auto_wrap(sharded, device_mesh, {}, fsdp::wrap_types({"tiny_layer"}));
  root.initialize(1);
  const auto pass = [&](nn::Module& module) {
    nn::Record record;
    const nn::Tensors ys = module.forward(context, {context.make({1}, DType::f32)}, &record);
    module.backward(context, std::move(record), ys);
  };
  std::vector<Variant> variants;
  variants.push_back({"plain", [&] { pass(plain); }});
  variants.push_back({"sharded", [&] {
                        pass(sharded);
                        root.zero_grad();
                      }});
  take_turns(app, variants, 20 * options.rounds);
  const double plain_s = median(variants[0].seconds), sharded_s = median(variants[1].seconds);
  Report report(app.world.rank() == 0);
  report.add({{"bench", "overhead"},
              {"units", options.units},
              {"numel", options.numel},
              {"sharded_us", rounded(1e6 * sharded_s, 1)},
              {"plain_us", rounded(1e6 * plain_s, 1)},
              {"us_per_unit_and_step", rounded(1e6 * (sharded_s - plain_s) / static_cast<double>(options.units), 2)}});
  report.print_table();
}

po::options_description flags_of(OverheadOptions& options) {
  po::options_description flags("Flags");
  auto add = flags.add_options();
  add("model", po::value(&options.run.model)->default_value(options.run.model), model_names().c_str());
  add("batch", po::value(&options.run.batch)->default_value(options.run.batch), "sequences per rank and step");
  add("seq", po::value(&options.run.seq)->default_value(options.run.seq), "tokens per sequence");
  add("dtype", po::value(&options.run.dtype)->default_value(options.run.dtype), "fp32 or bf16: dtype of computation and all-gathers");
  add("strategy", po::value(&options.run.strategy)->default_value(options.run.strategy), "as fsdp.strategy of mica-train");
  add("variants", po::value(&options.variants)->default_value(options.variants), "variants to measure");
  add("rounds", po::value(&options.rounds)->default_value(options.rounds), "rounds, in which each variant takes a turn");
  add("units", po::value(&options.units)->default_value(options.units), "measure the runtime alone, with this many units");
  add("numel", po::value(&options.numel)->default_value(options.numel), "elements per unit");
  return flags;
}

}  // namespace

std::string overhead_help() {
  OverheadOptions defaults;
  return help_text(kOverheadHelp, flags_of(defaults));
}

ExitCode bench_overhead(App& app, const Arguments& arguments) {
  OverheadOptions options;
  read_flags(app, arguments, flags_of(options));
  app.comm.agree([&] {
    require<ConfigError>(options.rounds >= 1 && options.units >= 0 && options.numel >= 1,
                         "--rounds={} --units={} --numel={}, expected at least 1, 0 and 1", options.rounds, options.units, options.numel);
  });
  if (options.units > 0) {
    bench_runtime(app, options);
  } else {
    bench_model_overhead(app, options);
  }
  return ExitCode::done;
}

}  // namespace mica::train::bench
