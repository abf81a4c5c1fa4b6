// SPDX-License-Identifier: Apache-2.0
// A model whose units, order and gradients a test chooses, and which writes down when what ran.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "mica/comm/fake_group.hpp"

#include "rank_rig.hpp"

namespace mica::fsdp::testing {

using Note = std::function<void(const std::string&)>;

/// y = x. A weight whose gradient is `gradient` in every element.
class ProbeLayer final : public nn::Module {
 public:
  ProbeLayer(std::string name, std::int64_t numel, Note note)
      : Module("probe"),
        name_(std::move(name)),
        note_(std::move(note)),
        weight_(add_parameter("weight", {numel}, nn::Initializer::ones(), true)) {}

  double gradient = 1;
  DType weight_seen = DType::u8, x_seen = DType::u8, dy_seen = DType::u8;
  nn::Parameter& weight() { return weight_; }

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record* record) override {
    note_("forward " + name_);
    weight_seen = data_of(weight_).dtype;
    x_seen = xs[0].dtype();
    Tensor y = context.make(xs[0].shape(), xs[0].dtype());
    context.kernels.copy(context.compute, xs[0], y);
    y.needs_grad = record && (xs[0].needs_grad || weight_.requires_grad);
    return nn::list_of(std::move(y));
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) override {
    note_("backward " + name_);
    dy_seen = dys[0].dtype();
    static_cast<void>(data_of(weight_));
    if (const nn::GradTarget target = weight_.write_grad(); target.view) {
      const Tensor g = context.make(weight_.shape, target.view.dtype);
      context.kernels.fill(context.compute, g, gradient);
      context.kernels.scale(context.compute, g, 1.0, target.view, target.mode);
    }
    return record.needs_dx(0) ? std::move(dys) : nn::Tensors(1);
  }

 private:
  std::string name_;
  Note note_;
  nn::Parameter& weight_;
};

/// "a", "b", ...
inline std::string layer_name(int i) { return {static_cast<char>('a' + i)}; }

/// Layers in a chosen order, each as often as it is named, and a weight of the model's own that nobody uses the value of.
class ProbeModel final : public nn::Module {
 public:
  explicit ProbeModel(
      int num_layers, Note note = [](const std::string&) {}, std::int64_t numel = 5)
      : Module("model"), note_(std::move(note)), weight_(add_parameter("weight", {3}, nn::Initializer::ones(), true)) {
    for (int i = 0; i < num_layers; ++i) {
      const std::string name = layer_name(i);
      layers.push_back(&add_child<ProbeLayer>(name, name, numel, note_));
      order.push_back(i);
      passes_gradient.push_back(true);
    }
  }

  std::vector<ProbeLayer*> layers;
  std::vector<int> order;             ///< of the next forward
  std::vector<bool> passes_gradient;  ///< by layer; false: its output does not reach the loss

 protected:
  nn::Tensors do_forward(nn::Context& context, nn::Tensors xs, nn::Record* record) override {
    ran_ = order;
    for (const int i : order) xs = layers[static_cast<std::size_t>(i)]->forward(context, std::move(xs), nn::child_record(record));
    return xs;
  }
  nn::Tensors do_backward(nn::Context& context, nn::Record& record, nn::Tensors dys) override {
    note_("backward root");
    const nn::GradTarget target = weight_.write_grad();
    if (target.view && target.mode == Write::overwrite) context.kernels.fill(context.compute, target.view, 1.0);
    for (std::size_t i = ran_.size(); i-- > 0;) {
      const auto layer = static_cast<std::size_t>(ran_[i]);
      const nn::Tensors before = dys;
      const nn::Tensors dy = passes_gradient[layer] ? dys : nn::Tensors(1);
      dys = layers[layer]->backward(context, std::move(record.child(i)), dy);
      if (!passes_gradient[layer]) dys = before;
    }
    return dys;
  }

 private:
  Note note_;
  nn::Parameter& weight_;
  std::vector<int> ran_;
};

/// Every layer a unit with these options, and the model the root.
inline void shard_layers(ProbeModel& model, DeviceMesh& device_mesh, const Options& options) {
  for (ProbeLayer* layer : model.layers) fully_shard(*layer, device_mesh, options);
  fully_shard(model, device_mesh, options);
  root_of(model).initialize(1);
}

inline Unit& unit_of(nn::Module& module) { return dynamic_cast<Unit&>(*module.hooks()); }

inline Tensor input_of(nn::Context& context) {
  Tensor x = context.make({2, 2}, DType::f32);
  context.kernels.fill(context.compute, x, 1.0);
  return x;
}

/// Forward and backward.
inline void train_pass(ProbeModel& model, nn::Context& context) {
  nn::Record record;
  nn::Tensors ys = model.forward(context, {input_of(context)}, &record);
  model.backward(context, std::move(record), std::move(ys));
}

/// A module's note, among the collectives of a fake group.
inline void log_note(FakeRecorder& log, const std::string& what) { log.calls.push_back({Collective::barrier, what, 0, ""}); }

/// Gathers, reductions and notes in host order.
inline std::vector<std::string> events_of(const FakeRecorder& log) {
  std::vector<std::string> events;
  for (const FakeCall& call : log.calls) {
    if (call.kind == Collective::all_gather && call.label != "agreement") events.push_back("gather " + call.label);
    if (call.kind == Collective::reduce_scatter) events.push_back("reduce " + call.label);
    if (call.kind == Collective::barrier) events.push_back(call.label);
  }
  return events;
}

inline std::int64_t all_gathers(DeviceMesh& device_mesh) { return device_mesh.unshard_group().counts().of(Collective::all_gather); }
inline std::int64_t reduce_scatters(DeviceMesh& device_mesh) { return device_mesh.reduce_group().counts().of(Collective::reduce_scatter); }

}  // namespace mica::fsdp::testing
