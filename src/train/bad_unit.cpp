// SPDX-License-Identifier: Apache-2.0
#include "mica/train/bad_unit.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "mica/tensor/fetch.hpp"

namespace mica::train {
namespace {

using fsdp::PassPoint;

constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

/// The smallest of the ranks' numbers.
std::int64_t all_min(const mpi::Communicator& world, std::int64_t mine) { return -world.all_max(-mine); }

/// The device or offload tier that holds a unit's arrays.
struct Place {
  Kernels& kernels;
  Stream& stream;
  Pool& pool;
};

Place place_of(const fsdp::DeviceMesh& device_mesh, const Pool& pool) {
  const fsdp::OffloadTier& tier = device_mesh.offload();
  if (&pool == tier.pool.get()) return {*tier.kernels, *tier.stream, *tier.pool};
  return {device_mesh.kernels(), device_mesh.compute(), device_mesh.pool()};
}

float sum_of_squares(const Place& place, const ConstTensorView& x) {
  const Tensor sum(place.pool.allocate(dtype_bytes(DType::f32), MemoryRole::workspace, place.stream), Shape{1}, DType::f32);
  place.kernels.power_sum(place.stream, x, 2, sum, Write::overwrite);
  return fetch_scalar(place.kernels, place.stream, sum);
}

/// The sum of squares of one of each unit's arrays on this rank; 0 for a unit without it.
std::vector<float> sums_of_units(const fsdp::Root& root, const std::function<ConstTensorView(const fsdp::UnitStorage&)>& array_of,
                                 const std::function<const Pool&(const fsdp::UnitStorage&)>& pool_of) {
  std::vector<float> sums;
  for (const fsdp::Unit* unit : root.units()) {
    const fsdp::UnitStorage* storage = unit->storage();
    const ConstTensorView array = storage != nullptr ? array_of(*storage) : ConstTensorView{};
    sums.push_back(array && array.numel() > 0 ? sum_of_squares(place_of(root.device_mesh(), pool_of(*storage)), array) : 0.0F);
  }
  return sums;
}

std::vector<float> gradient_sums(const fsdp::Root& root) {
  return sums_of_units(
      root, [](const fsdp::UnitStorage& s) -> ConstTensorView { return s.sharded_grad(); },
      [](const fsdp::UnitStorage& s) -> const Pool& { return s.grad_pool(); });
}

std::string name_of(const fsdp::Root& root, std::int64_t unit) {
  return fmt::format("unit {}", root.units()[static_cast<std::size_t>(unit)]->name());
}

/// Watches the tensors that enter and leave units in a step, and notes the first on this rank that is not finite.
class PassWatcher {
 public:
  explicit PassWatcher(fsdp::Root& root) : root_(root) {
    root_.set_pass_observer([this](const fsdp::Unit& unit, PassPoint point, const nn::Tensors& tensors) { look(unit, point, tensors); });
  }
  ~PassWatcher() { root_.set_pass_observer(nullptr); }
  PassWatcher(const PassWatcher&) = delete;
  PassWatcher& operator=(const PassWatcher&) = delete;

  [[nodiscard]] std::int64_t first_bad() const { return first_bad_; }
  [[nodiscard]] std::string describe(std::int64_t i) const {
    const auto& [unit, point] = seen_[static_cast<std::size_t>(i)];
    switch (point) {
      case PassPoint::inputs:
        return fmt::format("unit root: what it gives to {} in forward", unit->name());
      case PassPoint::outputs:
        return fmt::format("unit {}: its output in forward", unit->name());
      case PassPoint::output_gradients:
        return fmt::format("unit root: the gradient that it gives to {} in backward", unit->name());
      case PassPoint::input_gradients:
        return fmt::format("unit {}: the gradient of its input in backward", unit->name());
    }
    return {};
  }

 private:
  void look(const fsdp::Unit& unit, PassPoint point, const nn::Tensors& tensors) {
    if (&unit == root_.units().front()) return;  // its inputs are tokens, and its loss gets its value only in backward
    seen_.emplace_back(&unit, point);
    if (first_bad_ != kNone) return;
    const fsdp::DeviceMesh& device_mesh = root_.device_mesh();
    const Place place{device_mesh.kernels(), device_mesh.compute(), device_mesh.pool()};
    const bool is_bad = std::ranges::any_of(tensors, [&](const Tensor& tensor) {
      return tensor && is_floating(tensor.dtype()) && tensor.numel() > 0 && !std::isfinite(sum_of_squares(place, tensor));
    });
    if (is_bad) first_bad_ = std::ssize(seen_) - 1;
  }

  fsdp::Root& root_;
  std::vector<std::pair<const fsdp::Unit*, PassPoint>> seen_;  // in the same order on all ranks
  std::int64_t first_bad_ = kNone;
};

bool is_bad(float sum) { return !std::isfinite(sum); }

/// The number of the first unit whose parameters are not finite on some rank; kNone: all are. @collective
std::int64_t first_with_bad_parameters(const fsdp::Root& root, const mpi::Communicator& world) {
  const std::vector<float> sums = sums_of_units(
      root, [](const fsdp::UnitStorage& s) { return s.master(); },
      [](const fsdp::UnitStorage& s) -> const Pool& { return s.master_pool(); });
  const auto first = std::ranges::find_if(sums, is_bad);
  return all_min(world, first == sums.end() ? kNone : first - sums.begin());
}

}  // namespace

bool has_finite_parameters(const fsdp::Root& root, const mpi::Communicator& world) {
  return first_with_bad_parameters(root, world) == kNone;
}

std::string first_bad_unit(ShardedModel& model, const mpi::Communicator& world, const std::function<void()>& repeat_passes) {
  fsdp::Root& root = *model.root;
  const std::int64_t first = first_with_bad_parameters(root, world);
  if (first != kNone) return name_of(root, first) + ": its parameters";

  root.zero_grad();
  const PassWatcher watcher(root);
  repeat_passes();
  const std::int64_t passed = all_min(world, watcher.first_bad());
  if (passed != kNone) return watcher.describe(passed);

  const std::vector<float> gradients = gradient_sums(root);
  const auto last = std::find_if(gradients.rbegin(), gradients.rend(), is_bad);  // backward goes from the last unit to the first
  const std::int64_t bad_gradient = world.all_max(last == gradients.rend() ? -1 : gradients.rend() - last - 1);
  return bad_gradient >= 0 ? name_of(root, bad_gradient) + ": its gradient" : unit_of_largest_gradient(model, world);
}

std::string unit_of_largest_gradient(ShardedModel& model, const mpi::Communicator& world) {
  const std::vector<float> sums = gradient_sums(*model.root);
  const auto largest = std::ranges::max_element(sums);
  // The bits of non-negative floats sort as the floats do.
  const std::int64_t mine = (std::int64_t{std::bit_cast<std::int32_t>(*largest)} << 24) | (largest - sums.begin());
  return name_of(*model.root, world.all_max(mine) & 0xffffff) + ": the largest gradient";
}

}  // namespace mica::train
