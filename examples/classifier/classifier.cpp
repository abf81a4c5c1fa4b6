// SPDX-License-Identifier: Apache-2.0
// Trains a classifier of hand-written digits on all ranks, saves it, and goes on where an earlier start stopped.
//   mpirun -np 4 classifier digits.txt RUN_FOLDER STEPS

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <mica/checkpoint/folder.hpp>
#include <mica/checkpoint/load.hpp>
#include <mica/checkpoint/save.hpp>
#include <mica/comm/mpi_group.hpp>
#include <mica/comm/run_app.hpp>
#include <mica/data/tensor_dataset.hpp>
#include <mica/fsdp/deterministic.hpp>
#include <mica/fsdp/wrap_policy.hpp>
#include <mica/nn/activation.hpp>
#include <mica/nn/layer_norm.hpp>
#include <mica/nn/linear.hpp>
#include <mica/nn/losses.hpp>
#include <mica/nn/sequential.hpp>
#include <mica/nn/supervised_model.hpp>
#include <mica/optim/clip_grad_norm.hpp>
#include <mica/optim/optimizer.hpp>
#include <mica/tensor/fetch.hpp>
#include <mica/tensor/openmp.hpp>
#include <mica/train/batch_loader.hpp>
#include <mica/train/thread_count.hpp>

namespace {

using namespace mica;

constexpr std::int64_t kPixels = 64, kDigits = 10;
constexpr std::size_t kHeldOut = 200;                       // images to evaluate on, the last ones of the file
constexpr std::int64_t kMicroBatch = 8, kGlobalBatch = 32;  // images of a forward, and of a step over all ranks
constexpr std::uint64_t kSeed = 1;

class Classifier final : public nn::SupervisedModel {
 public:
  explicit Classifier(std::int64_t width) : SupervisedModel("classifier") {
    add_body<nn::Linear>("in", kPixels, width);
    for (int i = 0; i < 2; ++i) {
      auto& block = add_body<nn::Residual>("blocks." + std::to_string(i), "classifier_block");
      block.add<nn::LayerNorm>("norm", width);
      block.add<nn::Linear>("up", width, 4 * width);
      block.add<nn::Relu>("act");
      block.add<nn::Linear>("down", 4 * width, width);
    }
    add_body<nn::Linear>("out", width, kDigits);
    set_head<nn::CrossEntropyLoss>("loss");
  }
};

struct Images {
  std::vector<float> pixels;          // [images, kPixels], from 0 to 1
  std::vector<std::int32_t> classes;  // [images]

  /// Images [begin, end) as a dataset.
  [[nodiscard]] data::TensorDataset part(std::size_t begin, std::size_t end) const {
    const auto pixel = [&](std::size_t image) { return pixels.begin() + static_cast<std::ptrdiff_t>(image) * kPixels; };
    const auto digit = [&](std::size_t image) { return classes.begin() + static_cast<std::ptrdiff_t>(image); };
    return data::TensorDataset(
        {{"pixels", {kPixels}, std::vector(pixel(begin), pixel(end))}, {"digit", {}, std::vector(digit(begin), digit(end))}});
  }
};

/// Each line is an image, a character a pixel from 0 (white) to g (black), and its digit.
Images read_images(const std::string& path) {
  std::ifstream file(path);
  require<ConfigError>(static_cast<bool>(file), "{}: cannot be read; give the path of digits.txt", path);
  Images images;
  std::string image;
  for (std::int32_t digit = 0; file >> image >> digit;) {
    require<ConfigError>(std::ssize(image) == kPixels, "{}: image {} has {} pixels, expected {}", path, images.classes.size() + 1,
                         image.size(), kPixels);
    for (const char c : image) images.pixels.push_back(static_cast<float>(c <= '9' ? c - '0' : c - 'a' + 10) / 16);
    images.classes.push_back(digit);
  }
  require<ConfigError>(images.classes.size() > kHeldOut, "{}: {} images, expected more than the {} to evaluate on", path,
                       images.classes.size(), kHeldOut);
  return images;
}

struct Score {
  double loss = 0, accuracy = 0;
};

/// Every rank looks at all images: they are few.
Score evaluate(Classifier& model, nn::Context& context, const fsdp::DeviceMesh& device_mesh, const data::Dataset& images) {
  const std::int64_t count = images.num_samples();
  const data::Sampler in_order(count, data::DataOrder::sequential, kSeed);
  train::BatchLoader batches(context, device_mesh, images, in_order, {.micro_batch = count}, /*data_rank=*/0);
  const nn::Tensors batch = batches.load(1, 0);
  const nn::ScopedValue evaluating(context.training, false);
  const nn::Tensors logits = model.forward(context, {batch[0]}, nullptr);

  nn::CrossEntropyLoss cross_entropy;
  const nn::Tensors loss = cross_entropy.forward(context, {logits[0], batch[1]}, nullptr);
  const auto scores = fetch<float>(context.kernels, context.compute, logits[0]);
  const auto classes = fetch<std::int32_t>(context.kernels, context.compute, batch[1]);
  std::int64_t right = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto row = scores.begin() + i * kDigits;
    right += std::max_element(row, row + kDigits) - row == classes[static_cast<std::size_t>(i)] ? 1 : 0;
  }
  return {.loss = static_cast<double>(fetch_scalar(context.kernels, context.compute, loss[0])),
          .accuracy = static_cast<double>(right) / static_cast<double>(count)};
}

ExitCode train_classifier(App& app) {
  require<ConfigError>(app.arguments.size() == 3, "expected three arguments: classifier digits.txt RUN_FOLDER STEPS");
  const std::string& run_folder = app.arguments[1];
  const std::int64_t steps = std::atoll(app.arguments[2].c_str());
  require<ConfigError>(steps >= 1, "STEPS is '{}', expected a number from 1 on", app.arguments[2]);

  const Images images = read_images(app.arguments[0]);
  const std::size_t num_training = images.classes.size() - kHeldOut;
  const data::TensorDataset training = images.part(0, num_training);
  const data::TensorDataset held_out = images.part(num_training, images.classes.size());

  set_openmp_threads(train::choose_threads(app.world, 0).threads);
  const std::unique_ptr<Pool> pool = make_cpu_pool();
  const std::unique_ptr<Kernels> kernels = make_cpu_kernels(*pool);
  Mesh mesh = make_mpi_mesh(app.world, {.kind = ShardSize::Kind::world}, *pool);
  fsdp::DeviceMesh device_mesh(mesh, *pool, *kernels, fsdp::Streams::make(comm_stream_mode(app.session, StreamMode::inlined)));

  Classifier model(/*width=*/32);
  fsdp::Options options{.strategy = fsdp::Strategy::full_shard};
  options.root = fsdp::RootOptions{.deterministic = true};
  fsdp::Root& root = fsdp::auto_wrap(model, device_mesh, options, fsdp::wrap_types({"classifier_block"}));
  root.initialize(kSeed);
  const std::unique_ptr<optim::Optimizer> optimizer = optim::make_adamw(root, {.weight_decay = 0.01});
  nn::Context context{.compute = device_mesh.compute(), .pool = *pool, .kernels = *kernels};
  context.seed = kSeed;

  data::BatchPlan plan = data::make_batch_plan(kMicroBatch, app.world.num_ranks(), kGlobalBatch);

  std::optional<checkpoint::CheckpointId> parent;
  const std::string newest = app.comm.from_first_rank([&] {
    const auto found = checkpoint::newest_complete(run_folder);
    return found ? found->path : std::string();
  });
  if (!newest.empty()) {
    const checkpoint::Manifest manifest = checkpoint::open_checkpoint(newest, app.comm);
    require<ConfigError>(manifest.data == training.fingerprint(), "{} was trained on {}, and these are {}; choose another folder", newest,
                         manifest.data, training.fingerprint());
    checkpoint::load(newest, manifest, {.root = &root, .optimizer = optimizer.get()}, app.comm);
    parent = manifest.id();
    plan.first_step = manifest.step + 1;
    plan.sequences_before = manifest.sequences;
    if (app.world.rank() == 0) std::printf("goes on from %s\n", newest.c_str());
  }

  const data::Sampler shuffled(training.num_samples(), data::DataOrder::shuffled, kSeed);
  train::BatchLoader batches(context, device_mesh, training, shuffled, plan, mesh.rank());
  const Tensor one = context.make({1}, DType::f32);
  kernels->fill(context.compute, one, 1);
  const std::string run_id = checkpoint::make_run_id();
  for (std::int64_t step = plan.first_step; step <= steps; ++step) {
    context.step = static_cast<std::uint64_t>(step);
    for (std::int64_t round = 0; round < plan.accumulation; ++round) {
      nn::Record record;
      static_cast<void>(model.forward(context, batches.load(step, round), &record));
      model.backward(context, std::move(record), {one});
    }
    fsdp::average_grads(root, plan.accumulation * plan.num_ranks);
    const optim::ClipCoefficient clip = optim::clip_coefficient(root, /*max_norm=*/1.0);
    optimizer->step({.lr = 5e-3, .grad_scale = clip.coefficient.view()});
    root.zero_grad();
    batches.read_ahead(step + 1);
    if (step % 20 != 0 && step != steps) continue;

    const Score score = evaluate(model, context, device_mesh, held_out);
    if (app.world.rank() == 0) {
      std::printf("step %d  loss %.9g  accuracy %.1f %%\n", static_cast<int>(step), score.loss, 100 * score.accuracy);
    }
    const checkpoint::SaveState state{.root = &root,
                                      .optimizer = optimizer.get(),
                                      .run_id = run_id,
                                      .step = step,
                                      .parent = parent,
                                      .global_batch = kGlobalBatch,
                                      .sequences = plan.sequences_at(step + 1),
                                      .data = training.fingerprint(),
                                      .seed = kSeed,
                                      .model = {{"type", "classifier"}}};
    checkpoint::save(run_folder, state, app.comm, {.keep = 2});
    parent = checkpoint::CheckpointId{.run_id = run_id, .step = step};
  }
  return ExitCode::done;
}

}  // namespace

int main(int argc, char** argv) { return mica::run_app(argc, argv, train_classifier); }
