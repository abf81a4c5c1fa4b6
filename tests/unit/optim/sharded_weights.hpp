// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mica/fsdp/fully_shard.hpp"

#include "testing/local_group.hpp"

namespace mica::test {

using Values = std::vector<float>;

struct WeightSpec {
  std::string name;
  Shape shape;
  bool weight_decay = false;
  Values init{};  // zeros if empty
};

struct BufferSpec {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
};

/// A module whose gradients the test chooses: backward writes them as they are.
class Weights final : public nn::Module {
 public:
  explicit Weights(const std::vector<WeightSpec>& specs) : Module("weights") {
    for (const WeightSpec& spec : specs) {
      weights_.push_back({&add_parameter(spec.name, spec.shape, nn::Initializer::zeros(), spec.weight_decay), {}, true});
    }
  }
  struct Weight {
    nn::Parameter* parameter;
    Values grad;
    bool has_grad;  // false: backward does not write it
  };
  [[nodiscard]] std::vector<Weight>& weights() { return weights_; }
  using Module::add_buffer;

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors, nn::Record*) override {
    Tensor y = context.make(Shape{1}, DType::f32);
    context.kernels.fill(context.compute, y, 0.0);
    y.needs_grad = true;
    return nn::list_of(std::move(y));
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record&, nn::Tensors) override {
    for (Weight& weight : weights_) {
      if (!weight.has_grad || !weight.parameter->requires_grad) continue;
      const ConstTensorView grad{weight.grad.data(), weight.parameter->shape, DType::f32};
      const nn::GradTarget target = weight.parameter->write_grad();
      context.kernels.scale(context.compute, grad, 1.0, target.view, target.mode);
    }
    return {};
  }

 private:
  std::vector<Weight> weights_;
};

/// Calls its children one after another; each is a unit in these tests.
class Chain final : public nn::Module {
 public:
  explicit Chain(const std::vector<std::vector<WeightSpec>>& units) : Module("chain") {
    for (std::size_t i = 0; i < units.size(); ++i) {
      parts_.push_back(&add_child<Weights>(fmt::format("u{}", i), units[i]));
    }
  }
  [[nodiscard]] std::vector<Weights*>& parts() { return parts_; }

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record* record) override {
    nn::Tensors ys;
    for (Weights* part : parts_) ys.push_back(part->forward(context, xs, nn::child_record(record)).front());
    return ys;
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) override {
    for (std::size_t i = parts_.size(); i-- > 0;) {
      parts_[i]->backward(context, std::move(record.child(i)), nn::list_of(dys[i]));
    }
    return {};
  }

 private:
  std::vector<Weights*> parts_;
};

struct ShardedOptions {
  fsdp::Options fsdp{};
  StreamMode mode = StreamMode::inlined;
  fsdp::Streams::Make make_stream = make_cpu_stream;
  std::function<std::unique_ptr<Pool>()> make_pool = make_cpu_pool;
  int shard_size = 0;                 // 0: the world
  std::vector<int> unsharded{};       // units with strategy no_shard
  bool ignores_first = false;         // the first parameter of the first unit is ignored, its storage the test's
  bool one_unit = false;              // the root holds all parameters
  std::vector<BufferSpec> buffers{};  // of the first unit
};

/// One rank of a mesh with a Chain sharded on it.
class ShardedWeights {
 public:
  ShardedWeights(std::unique_ptr<ProcessGroup> world, const std::vector<std::vector<WeightSpec>>& units, const ShardedOptions& options = {})
      : pool_(options.make_pool()),
        mesh_(make_mesh(std::move(world), options.shard_size)),
        kernels_(make_cpu_kernels(*pool_)),
        device_mesh_(mesh_, *pool_, *kernels_, fsdp::Streams::make(options.mode, options.make_stream)),
        context_{.compute = device_mesh_.compute(), .pool = *pool_, .kernels = *kernels_, .sequences = {}},
        model_(std::make_unique<Chain>(units)) {
    pool_->poison(true);
    for (const BufferSpec& buffer : options.buffers) {
      model_->parts()[0]->add_buffer(buffer.name, buffer.shape, buffer.dtype, nn::Initializer::zeros());
    }
    for (std::size_t i = 0; i < units.size() && !options.one_unit; ++i) {
      fsdp::Options unit_options = options.fsdp;
      for (const int u : options.unsharded) {
        if (static_cast<std::size_t>(u) == i) unit_options.strategy = fsdp::Strategy::no_shard;
      }
      if (options.ignores_first && i == 0) unit_options.ignored_parameters = {hold_first(units[0][0])};
      fsdp::fully_shard(*model_->parts()[i], device_mesh_, unit_options);
    }
    fsdp::Options root_options = options.fsdp;
    if (options.ignores_first && options.one_unit) root_options.ignored_parameters = {hold_first(units[0][0])};
    fsdp::fully_shard(*model_, device_mesh_, root_options);
    root().initialize(1);
    for (std::size_t i = 0; i < units.size(); ++i) {
      for (const WeightSpec& spec : units[i]) {
        if (!spec.init.empty()) write_master(fmt::format("u{}.{}", i, spec.name), spec.init);
      }
    }
  }
  ~ShardedWeights() { device_mesh_.compute().synchronize(); }

  [[nodiscard]] fsdp::Root& root() { return fsdp::root_of(*model_); }
  [[nodiscard]] Pool& pool() { return *pool_; }
  [[nodiscard]] Kernels& kernels() { return *kernels_; }
  [[nodiscard]] fsdp::DeviceMesh& device_mesh() { return device_mesh_; }
  [[nodiscard]] Chain& model() { return *model_; }
  [[nodiscard]] nn::Context& context() { return context_; }
  [[nodiscard]] Weights::Weight& weight(std::size_t unit, std::size_t i) { return model_->parts()[unit]->weights()[i]; }

  /// One forward and backward with the gradients that the test set.
  /// @param units_with_grad  the others' outputs get no gradient; all if empty.
  void pass(const std::vector<bool>& units_with_grad = {}) {
    nn::Record record;
    const nn::Tensors ys = model_->forward(context_, {}, &record);
    nn::Tensors dys;
    for (std::size_t i = 0; i < ys.size(); ++i) {
      dys.push_back(units_with_grad.empty() || units_with_grad[i] ? ys[i] : Tensor());
    }
    model_->backward(context_, std::move(record), dys);
    context_.compute.synchronize();  // the gradients are host memory of the test
  }

  /// The whole parameter, from this rank's pieces and those of the other shard ranks. @collective
  [[nodiscard]] Values gather(const std::string& parameter) {
    return gather_from(parameter, [this](const fsdp::Piece& p) { return root().master(p); });
  }
  [[nodiscard]] Values gather_grad(const std::string& parameter) {
    return gather_from(parameter, [this](const fsdp::Piece& p) { return root().grad(p); });
  }

  void write_master(const std::string& parameter, const Values& values) {
    device_mesh_.compute().synchronize();
    for (const fsdp::Piece& p : root().pieces()) {
      if (root().parameter(p).full_name != parameter) continue;
      std::copy(values.begin() + p.begin, values.begin() + p.end, root().write_master(p).as<float>());
    }
  }

 private:
  nn::Parameter* hold_first(const WeightSpec& spec) {
    nn::Parameter* parameter = weight(0, 0).parameter;
    first_data_ = spec.init;
    first_data_.resize(static_cast<std::size_t>(spec.shape.numel()));
    first_grad_.resize(first_data_.size());
    parameter->data = {first_data_.data(), spec.shape, DType::f32};
    parameter->grad = {first_grad_.data(), spec.shape, DType::f32};
    return parameter;
  }
  static Mesh make_mesh(std::unique_ptr<ProcessGroup> world, int shard_size) {
    MeshGeometry geometry;
    geometry.world_size = world->num_ranks();
    geometry.shard_size = shard_size == 0 ? geometry.world_size : shard_size;
    geometry.replicas = geometry.world_size / geometry.shard_size;
    return {std::move(world), geometry};
  }

  Values gather_from(const std::string& parameter, const std::function<ConstTensorView(const fsdp::Piece&)>& view) {
    Values whole;
    bool is_replicated = false;
    for (const fsdp::Unit* unit : root().units()) {
      if (!unit->storage()) continue;
      for (const fsdp::UnitParameter& p : unit->storage()->parameters()) {
        if (p.full_name != parameter) continue;
        whole.resize(static_cast<std::size_t>(p.parameter->shape.numel()));
        is_replicated = unit->storage()->shard_size() == 1;
      }
    }
    device_mesh_.compute().synchronize();
    for (const fsdp::Piece& p : root().pieces()) {
      if (root().parameter(p).full_name != parameter || (is_replicated && mesh_.shard_rank() != 0)) continue;
      if (const ConstTensorView piece = view(p)) std::copy_n(piece.as<float>(), piece.numel(), whole.begin() + p.begin);
    }
    const TensorView all{whole.data(), Shape{static_cast<std::int64_t>(whole.size())}, DType::f32};
    mesh_.shard().all_reduce(device_mesh_.compute(), "gather", all, ReduceOp::sum);
    device_mesh_.compute().synchronize();
    return whole;
  }

  std::unique_ptr<Pool> pool_;
  Mesh mesh_;
  std::unique_ptr<Kernels> kernels_;
  fsdp::DeviceMesh device_mesh_;
  nn::Context context_;
  std::unique_ptr<Chain> model_;
  Values first_data_, first_grad_;  // of an ignored parameter
};

}  // namespace mica::test
