// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "mica/fsdp/fully_shard.hpp"
#include "mica/nn/activation.hpp"
#include "mica/nn/head_loss.hpp"
#include "mica/nn/linear.hpp"

#include "support/paths.hpp"
#include "testing/local_group.hpp"

namespace mica::test {

using Values = std::vector<float>;

/// What tests/reference/make_fsdp_reference.py wrote.
inline const nlohmann::json& fsdp_reference() {
  static const nlohmann::json kReference = nlohmann::json::parse(std::ifstream(test::reference_path("fsdp.json")));
  return kReference;
}

/// up, GELU, down; `extra` is never called.
class ReferenceBody final : public nn::Module {
 public:
  ReferenceBody() : Module("body") {
    up_ = &add_child<nn::Linear>("up", 6, 10);
    act_ = &add_child<nn::Gelu>("act");
    down_ = &add_child<nn::Linear>("down", 10, 8);
    add_child<nn::Linear>("extra", 8, 2);
  }

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record* record) override {
    for (nn::Module* each : {up_, act_, down_}) xs = each->forward(context, xs, nn::child_record(record));
    return xs;
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) override {
    std::size_t child = 3;
    for (nn::Module* each : {down_, act_, up_}) dys = each->backward(context, std::move(record.child(--child)), dys);
    return dys;
  }

 private:
  nn::Module *up_, *act_, *down_;
};

/// The model of the script: {x [rows, 6], targets [rows]} -> {mean cross-entropy}.
class ReferenceModel final : public nn::Module {
 public:
  ReferenceModel() : Module("reference") {
    body_ = &add_child<ReferenceBody>("body");
    head_ = &add_child<nn::HeadLoss>("head", 5, 8);
  }
  [[nodiscard]] ReferenceBody& body() { return *body_; }

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record* record) override {
    nn::Tensors hidden = body_->forward(context, nn::list_of(xs[0]), nn::child_record(record));
    hidden.front().needs_grad = true;
    return head_->forward(context, {hidden.front(), xs[1]}, nn::child_record(record));
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) override {
    const nn::Tensors dhidden = head_->backward(context, std::move(record.child(1)), dys);
    return body_->backward(context, std::move(record.child(0)), nn::list_of(dhidden[0]));
  }

 private:
  ReferenceBody* body_;
  nn::HeadLoss* head_;
};

/// One rank with the model sharded on it: body.up, maybe body.down, and the root are units.
class ReferenceRank {
 public:
  struct Setup {
    fsdp::Options options{};
    std::optional<fsdp::Strategy> down{};  ///< body.down is a unit of this strategy
    bool wraps_up = true;
    std::vector<std::string> frozen{};
  };
  ReferenceRank(std::unique_ptr<ProcessGroup> world, const Setup& setup)
      : pool_(make_cpu_pool()),
        kernels_(make_cpu_kernels(*pool_)),
        num_ranks_(world->num_ranks()),
        mesh_(std::move(world), MeshGeometry{num_ranks_, num_ranks_, 1}),
        device_mesh_(mesh_, *pool_, *kernels_, fsdp::Streams::make(StreamMode::inlined)),
        context_{.compute = device_mesh_.compute(), .pool = *pool_, .kernels = *kernels_, .sequences = {}} {
    pool_->poison(true);
    model_.for_each_parameter([&](const std::string& name, nn::Parameter& p) {
      if (std::ranges::find(setup.frozen, name) != setup.frozen.end()) p.requires_grad = false;
    });
    nn::Module& body = *model_.children()[0].module;
    if (setup.wraps_up) fsdp::fully_shard(*body.children()[0].module, device_mesh_, setup.options);
    if (setup.down) {
      fsdp::Options options = setup.options;
      options.strategy = *setup.down;
      fsdp::fully_shard(*body.children()[2].module, device_mesh_, options);
    }
    fsdp::fully_shard(model_, device_mesh_, setup.options);
    root().initialize(1);
    device_mesh_.compute().synchronize();
    for (const fsdp::Piece& p : root().pieces()) {
      const Values whole = fsdp_reference()["parameters"][root().parameter(p).full_name].get<Values>();
      std::copy(whole.begin() + p.begin, whole.begin() + p.end, root().write_master(p).as<float>());
    }
  }
  ~ReferenceRank() { device_mesh_.compute().synchronize(); }

  [[nodiscard]] fsdp::Root& root() { return fsdp::root_of(model_); }
  [[nodiscard]] nn::Module& model() { return model_; }
  [[nodiscard]] fsdp::DeviceMesh& device_mesh() { return device_mesh_; }
  [[nodiscard]] int rank() const { return mesh_.rank(); }

  /// Forward and backward on the inputs that the script gave `rank` in this step. @returns the loss.
  float pass(std::size_t step, int rank) {
    const nlohmann::json& input = fsdp_reference()["inputs"][step][static_cast<std::size_t>(rank)];
    Values x = input["x"].get<Values>();
    auto targets = input["targets"].get<std::vector<std::int32_t>>();
    const auto rows = static_cast<std::int64_t>(targets.size());
    nn::Record record;
    const nn::Tensors ys = model_.forward(
        context_, {Tensor(TensorView{x.data(), {rows, 6}, DType::f32}), Tensor(TensorView{targets.data(), {rows}, DType::i32})}, &record);
    const Tensor dloss = context_.make({1}, DType::f32);
    kernels_->fill(context_.compute, dloss, 1.0);
    model_.backward(context_, std::move(record), {dloss});
    context_.compute.synchronize();
    return *ys[0].view().as<float>();
  }
  /// @collective
  Values gather_grad(const std::string& parameter) {
    Values whole(fsdp_reference()["parameters"][parameter].size(), 0);
    context_.compute.synchronize();
    for (const fsdp::Piece& p : root().pieces()) {
      const TensorView grad = root().grad(p);
      if (root().parameter(p).full_name != parameter || (root().storage(p).shard_size() == 1 && rank() != 0) || !grad) continue;
      std::copy_n(grad.as<float>(), p.numel(), whole.begin() + p.begin);
    }
    mesh_.world().all_reduce(context_.compute, "gather", {whole.data(), Shape{static_cast<std::int64_t>(whole.size())}, DType::f32},
                             ReduceOp::sum);
    context_.compute.synchronize();
    return whole;
  }

 private:
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Kernels> kernels_;
  int num_ranks_;
  Mesh mesh_;
  fsdp::DeviceMesh device_mesh_;
  nn::Context context_;
  ReferenceModel model_;
};

}  // namespace mica::test
