// SPDX-License-Identifier: Apache-2.0
#include "mica/nn/gradcheck.hpp"

#include <algorithm>
#include <cmath>

#include "mica/nn/init.hpp"
#include "mica/tensor/random.hpp"

namespace mica::nn {
namespace {

struct Checked {
  std::string name;
  std::int64_t element;
  double backward;
  double difference;
  double scale;  // largest |difference| in the same tensor
};

class Gradcheck {
 public:
  Gradcheck(Module& module, Context& context, const Tensors& xs, const GradcheckOptions& options)
      : module_(module), context_(context), xs_(xs), options_(options), storage_(module, context) {
    context_.compute.synchronize();
    module_.for_each_parameter([&](const std::string& name, Parameter& parameter) {
      if (parameter.data.numel() == 0) return;
      const RandomKey key{.seed = options_.seed, .step = 0, .sequence = 0, .name_hash = hash_name("noise." + name)};
      auto* data = parameter.data.as<float>();
      for (std::int64_t i = 0; i < parameter.data.numel(); ++i) data[i] += normal(key, i, options_.parameter_noise);
    });
  }

  GradcheckReport run() {
    const Tensors dxs = run_backward();
    module_.for_each_parameter([&](const std::string& name, Parameter& parameter) {
      if (parameter.requires_grad && parameter.grad_written) compare(name, parameter.data, parameter.grad);
    });
    for (std::size_t i = 0; i < xs_.size(); ++i) {
      if (!xs_[i].needs_grad) continue;
      require<Error>(static_cast<bool>(dxs.at(i)), "a '{}' returned no gradient for input {}, which needs one", module_.type_name(), i);
      compare("input " + std::to_string(i), xs_[i], dxs[i]);
    }
    return report();
  }

 private:
  static float normal(const RandomKey& key, std::int64_t i, double deviation) {
    return static_cast<float>(deviation) * random_normal(key, static_cast<std::uint64_t>(i));
  }

  /// Fixed random weights of output i.
  [[nodiscard]] Tensor output_weights(std::size_t i, const Tensor& y) const {
    Tensor r = context_.make(y.shape(), y.dtype());
    context_.compute.synchronize();  // waits for the work of the memory's last owner
    const RandomKey key{.seed = options_.seed, .step = 0, .sequence = i, .name_hash = hash_name("gradcheck.outputs")};
    for (std::int64_t j = 0; j < y.numel(); ++j) r.view().as<float>()[j] = normal(key, j, 1);
    return r;
  }

  Tensors run_backward() {
    Record record;
    const Tensors ys = module_.forward(context_, xs_, &record);
    Tensors dys;
    for (std::size_t i = 0; i < ys.size(); ++i) dys.push_back(output_weights(i, ys[i]));
    Tensors dxs = module_.backward(context_, std::move(record), std::move(dys));
    context_.compute.synchronize();
    return dxs;
  }

  double value() {
    const Tensors ys = module_.forward(context_, xs_, nullptr);
    context_.compute.synchronize();
    double sum = 0;
    for (std::size_t i = 0; i < ys.size(); ++i) {
      const Tensor r = output_weights(i, ys[i]);
      for (std::int64_t j = 0; j < r.numel(); ++j) {
        sum += static_cast<double>(r.view().as<float>()[j]) * static_cast<double>(ys[i].view().as<float>()[j]);
      }
    }
    return sum;
  }

  /// (8 (f(+h) - f(-h)) - (f(+2h) - f(-2h))) / 12h
  double difference_at(float& element) {
    const float at = element;
    const auto value_at = [&](double offset) {
      element = at + static_cast<float>(offset);
      return value();
    };
    const double h = options_.step;
    const double near = value_at(h) - value_at(-h), far = value_at(2 * h) - value_at(-2 * h);
    element = at;
    return (8 * near - far) / (12 * h);
  }

  void compare(const std::string& name, const TensorView& data, const TensorView& gradient) {
    const std::int64_t numel = data.numel();
    const std::int64_t count = std::min(numel, options_.max_elements);
    const std::size_t first = checked_.size();
    double scale = 0;
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t i = k * numel / count;
      const double difference = difference_at(data.as<float>()[i]);
      checked_.push_back({name, i, static_cast<double>(gradient.as<float>()[i]), difference, 0});
      scale = std::max(scale, std::abs(difference));
    }
    for (std::size_t k = first; k < checked_.size(); ++k) checked_[k].scale = scale;
  }

  [[nodiscard]] GradcheckReport report() const {
    GradcheckReport report;
    report.num_checked = static_cast<std::int64_t>(checked_.size());
    double largest = 0;
    for (const Checked& c : checked_) largest = std::max(largest, c.scale);
    for (const Checked& c : checked_) {
      const double scale = std::max({c.scale, 0.01 * largest, 1e-30});
      const double error = std::isfinite(c.backward) ? std::abs(c.backward - c.difference) / scale : INFINITY;
      if (error < report.worst_error) continue;
      report.worst_error = error;
      report.worst_element = fmt::format("{}[{}]: backward {:.7g}, finite difference {:.7g}", c.name, c.element, c.backward, c.difference);
    }
    return report;
  }

  Module& module_;
  Context& context_;
  const Tensors& xs_;
  const GradcheckOptions& options_;
  PlainParameters storage_;
  std::vector<Checked> checked_;
};

}  // namespace

GradcheckReport gradcheck(Module& module, Context& context, const Tensors& xs, const GradcheckOptions& options) {
  require<ConfigError>(context.compute.device() == DeviceKind::cpu,
                       "gradcheck writes single elements from the host: give it a context with a CPU stream");
  return Gradcheck(module, context, xs, options).run();
}

}  // namespace mica::nn
