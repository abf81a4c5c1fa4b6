// SPDX-License-Identifier: Apache-2.0
// Bring your own model: declares one, shards it over all ranks and trains it.   mpirun -np 2 ./bring_your_own_model

#include <cstdio>

#include <mica/comm/mpi_group.hpp>
#include <mica/fsdp/wrap_policy.hpp>
#include <mica/mpi/session.hpp>
#include <mica/nn/activation.hpp>
#include <mica/nn/language_model.hpp>
#include <mica/nn/layer_norm.hpp>
#include <mica/nn/linear.hpp>
#include <mica/nn/sequential.hpp>
#include <mica/optim/clip_grad_norm.hpp>
#include <mica/optim/optimizer.hpp>

namespace {

using namespace mica;
constexpr std::int64_t kVocab = 50, kWidth = 32, kSequences = 4, kTokens = 16;

/// Predicts a token from the one before it. The backward comes with the parts.
class Bigram final : public nn::LanguageModel {
 public:
  Bigram() : LanguageModel("bigram") {
    add_body<nn::Embedding>("embed", kVocab, kWidth);
    for (int i = 0; i < 2; ++i) {
      auto& block = add_body<nn::Residual>("blocks." + std::to_string(i), "bigram_block");
      block.add<nn::LayerNorm>("norm", kWidth);
      block.add<nn::Linear>("up", kWidth, 4 * kWidth);
      block.add<nn::Gelu>("act");
      block.add<nn::Linear>("down", 4 * kWidth, kWidth);
    }
    set_head<nn::HeadLoss>("head", kVocab, kWidth);
  }
};

void train(const mpi::Session& session) {
  mpi::Communicator world = mpi::Communicator::world();
  const std::unique_ptr<Pool> pool = make_cpu_pool();
  const std::unique_ptr<Kernels> kernels = make_cpu_kernels(*pool);
  Mesh mesh = make_mpi_mesh(world, {.kind = ShardSize::Kind::world}, *pool);
  fsdp::DeviceMesh device_mesh(mesh, *pool, *kernels, fsdp::Streams::make(comm_stream_mode(session, StreamMode::inlined)));

  Bigram model;
  fsdp::Root& root = fsdp::auto_wrap(model, device_mesh, {.strategy = fsdp::Strategy::full_shard}, fsdp::wrap_types({"bigram_block"}));
  root.initialize(/*seed=*/1);
  const auto optimizer = optim::make_adamw(root, {.weight_decay = 0.01});
  nn::Context context{.compute = device_mesh.compute(), .pool = *pool, .kernels = *kernels};
  context.sequences.assign(kSequences, 0);

  // Every token is followed by 7 more, modulo the vocabulary; each rank starts elsewhere.
  std::vector<std::int32_t> ids(kSequences * kTokens), targets(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>((i * 11 + static_cast<std::size_t>(world.rank())) % kVocab);
    targets[i] = static_cast<std::int32_t>((ids[i] + 7) % kVocab);
  }
  const auto batch = [](std::vector<std::int32_t>& tokens) {
    return Tensor(TensorView{tokens.data(), Shape{kSequences, kTokens}, DType::i32});
  };
  float one = 1;
  for (int step = 1; step <= 40; ++step) {
    context.step = static_cast<std::uint64_t>(step);
    nn::Record record;
    const nn::Tensors loss = model.forward(context, {batch(ids), batch(targets)}, &record);
    model.backward(context, std::move(record), {Tensor(TensorView{&one, Shape{1}, DType::f32})});
    const optim::ClipCoefficient clip = optim::clip_coefficient(root, 1.0);
    optimizer->step({.lr = 1e-2, .grad_scale = clip.coefficient.view()});
    root.zero_grad();
    device_mesh.compute().synchronize();
    if (world.rank() == 0 && (step == 1 || step % 10 == 0)) std::printf("step %d loss %.4f\n", step, *loss[0].view().as<float>());
  }
  if (world.rank() == 0) std::printf("%s\n", root.describe().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  mica::mpi::Session session(&argc, &argv);
  train(session);
  session.close();
}
