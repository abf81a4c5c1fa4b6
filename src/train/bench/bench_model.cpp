// SPDX-License-Identifier: Apache-2.0
#include "bench_model.hpp"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string_view>

#include <unistd.h>

#include "mica/core/error.hpp"

namespace mica::train::bench {
namespace {

/// scripts/peers/torch_fsdp.py measures the same GPT-2s.
struct NamedModel {
  std::string_view name;
  std::int64_t layers, heads, width, vocab_size, context;
  std::int64_t kv_heads = 0, intermediate_size = 0;  // not 0: a Llama
};
constexpr std::array<NamedModel, 7> kModels{{{"gpt2-124m", 12, 12, 768, 50304, 1024},
                                             {"gpt2-1.5b", 48, 25, 1600, 50304, 1024},
                                             {"gpt2-30m", 6, 6, 384, 50304, 1024},
                                             {"char-10m", 6, 6, 384, 65, 256},
                                             {"char-tiny", 4, 4, 128, 65, 64},
                                             {"llama-100m", 12, 12, 768, 32000, 1024, 4, 2048},
                                             {"llama-tiny", 4, 4, 128, 256, 128, 2, 352}}};

const NamedModel& find_model(const std::string& name) {
  for (const NamedModel& model : kModels) {
    if (model.name == name) return model;
  }
  throw ConfigError(fmt::format("--model={} is unknown, expected one of {}", name, model_names()));
}

}  // namespace

std::string model_names() {
  std::string names;
  for (const NamedModel& model : kModels) names += (names.empty() ? "" : ", ") + std::string(model.name);
  return names;
}

void add_run_flags(po::options_description& flags, RunOptions& run) {
  static const std::string names = model_names();
  auto add = flags.add_options();
  add("model", po::value(&run.model)->default_value(run.model), names.c_str());
  add("batch", po::value(&run.batch)->default_value(run.batch), "sequences per rank and step");
  add("seq", po::value(&run.seq)->default_value(run.seq), "tokens per sequence");
  add("dtype", po::value(&run.dtype)->default_value(run.dtype),
      "fp32 or bf16: dtype of computation and all-gathers; gradients are reduced in fp32");
  add("strategy", po::value(&run.strategy)->default_value(run.strategy), "as fsdp.strategy of mica-train");
  add("activation-checkpointing", po::bool_switch(&run.activation_checkpointing), "recompute each block in backward");
  add("steps", po::value(&run.steps)->default_value(run.steps), "timed steps");
  add("warmup", po::value(&run.warmup)->default_value(run.warmup), "untimed steps before them");
}

Arguments take_keys(const Arguments& arguments, RunOptions& run) {
  Arguments others;
  for (const std::string& argument : arguments) {
    const bool is_key = argument.starts_with("--") && argument.substr(0, argument.find('=')).find('.') != std::string::npos;
    (is_key ? run.overrides : others).push_back(argument);
  }
  return others;
}

Config make_config(const RunOptions& o) {
  const NamedModel& m = find_model(o.model);
  require<ConfigError>(o.warmup >= 1, "--warmup={}, expected at least 1: the first step allocates", o.warmup);
  std::vector<std::string> settings{
      fmt::format("--model.layers={}", m.layers),
      fmt::format("--model.heads={}", m.heads),
      fmt::format("--model.width={}", m.width),
      fmt::format("--model.vocab_size={}", m.vocab_size),
      fmt::format("--model.context={}", m.context),
      fmt::format("--train.micro_batch={}", o.batch),
      fmt::format("--train.seq_len={}", o.seq),
      fmt::format("--train.steps={}", o.steps),
      fmt::format("--fsdp.param_dtype={}", o.dtype),
      "--fsdp.reduce_dtype=fp32",
      fmt::format("--fsdp.strategy={}", o.strategy),
      fmt::format("--fsdp.activation_checkpointing={}", o.activation_checkpointing ? "block" : "none"),
      "--optim.schedule=constant",
      "--optim.beta2=0.999",
      "--optim.lr=3e-4",
      "--optim.weight_decay=0.1",
      "--optim.grad_clip=1",
      "--data.train=random tokens",
      "--run.name=bench",
  };
  if (m.kv_heads > 0) {
    settings.insert(settings.end(), {"--model.type=llama", fmt::format("--model.kv_heads={}", m.kv_heads),
                                     fmt::format("--model.intermediate_size={}", m.intermediate_size)});
  }
  settings.insert(settings.end(), o.overrides.begin(), o.overrides.end());
  Config config = parse_config({}, settings);
  check_config(config);
  require<ConfigError>(config.train.global_batch == 0, "mica-bench times steps of one micro-batch a rank: leave train.global_batch out");
  return config;
}

double attention_flops(const Config& config) {
  const std::int64_t tokens = config.train.micro_batch * config.train.seq_len;
  return static_cast<double>(6 * tokens * config.model.layers * config.model.width * config.train.seq_len);
}

RandomTokenFile::RandomTokenFile(const Config& config, int num_ranks, int rank)
    : path_((std::filesystem::temp_directory_path() / fmt::format("mica-bench-{}-{}.bin", ::getpid(), rank)).string()) {
  // Enough for two steps, but at most 16 MiB on each rank of a large job, which then reads them again. In llm.c's format. The file is
  // mapped, so its pages do not count as the run's own memory.
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 22;
  const std::int64_t of_a_rank = config.train.micro_batch * config.train.seq_len;
  const std::int64_t num_tokens = std::min(2 * of_a_rank * num_ranks, std::max(kMostTokens, 2 * of_a_rank)) + 1;
  std::mt19937 random(1234);
  constexpr std::size_t kHeader = 256;
  std::vector<std::uint32_t> content(kHeader + static_cast<std::size_t>(num_tokens));
  content[0] = 20240801;  // uint32 ids
  content[1] = 7;         // the version
  content[2] = static_cast<std::uint32_t>(num_tokens);
  for (auto& token : std::span(content).subspan(kHeader)) {
    token = static_cast<std::uint32_t>(random() % static_cast<std::uint32_t>(config.model.vocab_size));
  }
  std::ofstream file(path_, std::ios::binary);
  file.write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size() * 4));
  file.close();
  require<IoError>(static_cast<bool>(file), "cannot write {}: {}; set TMPDIR to a folder that can be written", path_, errno_text(errno));
}

namespace {

Datasets open_random_tokens(const App& app, const Config& config) {
  std::optional<Datasets> datasets;
  app.comm.agree([&] {
    const RandomTokenFile file(config, app.world.num_ranks(), app.world.rank());  // gone once it is mapped
    Config with_data = config;
    with_data.data.train = {file.path()};
    datasets.emplace(Datasets::open(with_data));
  });
  return *std::move(datasets);
}

ShardedModel make_initialized(const App& app, const Config& config, const Device& device) {
  std::optional<ShardedModel> model;
  app.comm.agree([&] { model.emplace(ShardedModel::make(config, device)); });
  model->root->initialize(config.run.seed);
  return *std::move(model);
}

}  // namespace

Device make_device(const App& app, const Config& config) {
  return Device::make(config, app.session, app.world, Logger::to_stderr(LogLevel::warn, ""));
}

BenchRun::BenchRun(const App& app, const Config& config)
    : device(make_device(app, config)),
      plan(data::make_batch_plan(config.train.micro_batch, app.world.num_ranks(), config.train.global_batch)),
      datasets(open_random_tokens(app, config)),
      model(make_initialized(app, config, device)),
      runner(config, model, datasets.train, plan, device.mesh->rank()) {}

RandomTokenFile::~RandomTokenFile() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace mica::train::bench
