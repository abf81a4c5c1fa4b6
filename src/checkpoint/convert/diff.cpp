// SPDX-License-Identifier: Apache-2.0
#include "mica/checkpoint/diff.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "opened_model.hpp"

namespace mica::checkpoint {
namespace {

constexpr std::int64_t kChunkNumel = kBlockBytes / 4;

/// master; then, if both are checkpoints, the optimizer's kinds of both sides.
std::vector<std::string> kinds_of(const OpenedModel& a, const OpenedModel& b) {
  std::vector<std::string> kinds{std::string(kMasterKind)};
  if (a.manifest == nullptr || b.manifest == nullptr) return kinds;
  for (const auto* list : {&a.manifest->state_kinds, &b.manifest->state_kinds}) {
    for (const std::string& kind : *list) {
      if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
    }
  }
  return kinds;
}

/// Lists all parameters and kinds, with the sides that have them. Values are compared later.
std::vector<DiffEntry> list_entries(const OpenedModel& a, const OpenedModel& b) {
  std::vector<OpenedModel::Tensor> all = a.tensors;
  for (const OpenedModel::Tensor& tensor : b.tensors) {
    if (a.find(tensor.name) == nullptr) all.push_back(tensor);
  }
  const bool has_buffers = a.manifest != nullptr && b.manifest != nullptr;
  if (!has_buffers) std::erase_if(all, [](const OpenedModel::Tensor& t) { return t.role == UnitRole::buffer; });
  std::vector<DiffEntry> entries;
  for (const OpenedModel::Tensor& tensor : all) {
    const OpenedModel::Tensor* of_a = a.find(tensor.name);
    const OpenedModel::Tensor* of_b = b.find(tensor.name);
    for (const std::string& kind : kinds_of(a, b)) {
      const bool in_a = of_a != nullptr && a.source->has(tensor.name, kind);
      const bool in_b = of_b != nullptr && b.source->has(tensor.name, kind);
      if (!in_a && !in_b) continue;
      DiffEntry entry{.parameter = tensor.name, .kind = kind};
      if (in_a) entry.shape_a = of_a->shape;
      if (in_b) entry.shape_b = of_b->shape;
      if (!in_b) entry.result = DiffEntry::Result::only_in_a;
      if (!in_a) entry.result = DiffEntry::Result::only_in_b;
      if (in_a && in_b && entry.shape_a != entry.shape_b) entry.result = DiffEntry::Result::other_shape;
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

/// One side of a comparison, a chunk at a time.
class Side {
 public:
  explicit Side(ParameterSource& source) : source_(source), chunk_(static_cast<std::size_t>(kChunkNumel * 8)) {}

  void read(const DiffEntry& entry, std::int64_t begin, std::int64_t numel) {
    dtype_ = source_.dtype(entry.parameter, entry.kind);
    source_.read(entry.parameter, entry.kind, begin, numel, chunk_.data());
  }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const std::byte* data() const { return chunk_.data(); }
  [[nodiscard]] double value(std::int64_t i) const { return element_value(dtype_, chunk_.data(), i); }

 private:
  ParameterSource& source_;
  std::vector<std::byte> chunk_;
  DType dtype_ = DType::f32;
};

void compare_chunk(const Side& a, const Side& b, std::int64_t begin, std::int64_t numel, DiffEntry& entry) {
  const auto element = static_cast<std::size_t>(dtype_bytes(a.dtype()));
  const bool is_same_type = a.dtype() == b.dtype();
  if (is_same_type && std::memcmp(a.data(), b.data(), static_cast<std::size_t>(numel) * element) == 0) return;
  for (std::int64_t i = 0; i < numel; ++i) {
    const auto at = static_cast<std::size_t>(i) * element;
    const bool is_equal = is_same_type ? std::memcmp(a.data() + at, b.data() + at, element) == 0
                                       : std::bit_cast<std::uint64_t>(a.value(i)) == std::bit_cast<std::uint64_t>(b.value(i));
    if (is_equal) continue;
    entry.result = DiffEntry::Result::different;
    const double difference = std::abs(a.value(i) - b.value(i));
    // The first element that differs sets max_at, whatever its difference; a NaN, once seen, stays.
    const bool is_larger = entry.num_different == 0 || difference > entry.max_difference || std::isnan(difference);
    if (is_larger && !std::isnan(entry.max_difference)) {
      entry.max_difference = difference;
      entry.max_at = begin + i;
    }
    ++entry.num_different;
  }
}

std::string optimizer_difference(const Manifest& a, const Manifest& b) {
  if (a.optimizer != b.optimizer || a.optimizer_steps != b.optimizer_steps) {
    const auto describe = [](const Manifest& m) {
      return m.optimizer.empty() ? std::string("none") : fmt::format("{} after {} steps", m.optimizer, m.optimizer_steps);
    };
    return fmt::format("{} in A, {} in B", describe(a), describe(b));
  }
  std::string text;
  for (const auto* side : {&a, &b}) {
    for (const auto& [parameter, steps] : side->parameter_steps) {
      if (side == &b && a.parameter_steps.contains(parameter)) continue;
      const auto steps_in = [&parameter = parameter](const Manifest& m) {
        const auto own = m.parameter_steps.find(parameter);
        return own == m.parameter_steps.end() ? m.optimizer_steps : own->second;
      };
      if (steps_in(a) == steps_in(b)) continue;
      text += fmt::format("{}{} after {} steps in A, {} in B", text.empty() ? "" : "; ", parameter, steps_in(a), steps_in(b));
    }
  }
  return text;
}

std::vector<std::string> scalar_differences(const Manifest& a, const Manifest& b) {
  std::map<std::string, double> all = a.scalars;
  all.insert(b.scalars.begin(), b.scalars.end());
  std::vector<std::string> differences;
  for (const auto& [name, unused] : all) {
    const auto describe = [&name = name](const Manifest& m) {
      const auto found = m.scalars.find(name);
      return found == m.scalars.end() ? std::string("none") : fmt::format("{}", found->second);
    };
    if (describe(a) != describe(b)) differences.push_back(fmt::format("{}: {} in A, {} in B", name, describe(a), describe(b)));
  }
  return differences;
}

}  // namespace

bool DiffReport::is_equal() const {
  return optimizer_difference.empty() && scalar_differences.empty() && num_equal() == static_cast<std::int64_t>(entries.size());
}

std::int64_t DiffReport::num_equal() const { return std::ranges::count(entries, DiffEntry::Result::equal, &DiffEntry::result); }

DiffReport diff(const std::string& path_a, const std::string& path_b, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const OpenedModel a = open_model(path_a);
  const OpenedModel b = open_model(path_b);
  DiffReport report{list_entries(a, b), "", {}};
  if (a.manifest != nullptr && b.manifest != nullptr) {
    report.optimizer_difference = optimizer_difference(*a.manifest, *b.manifest);
    report.scalar_differences = scalar_differences(*a.manifest, *b.manifest);
  }
  std::vector<DiffEntry*> shared;
  std::int64_t total = 0;
  for (DiffEntry& entry : report.entries) {
    if (entry.result != DiffEntry::Result::equal) continue;
    shared.push_back(&entry);
    total += entry.shape_a.numel();
  }
  // Kind by kind, so that each dataset is read forward.
  const std::vector<std::string> kinds = kinds_of(a, b);
  std::ranges::stable_sort(shared, {}, [&](const DiffEntry* e) { return std::ranges::find(kinds, e->kind); });
  Side side_a(*a.source);
  Side side_b(*b.source);
  std::int64_t done = 0;
  for (DiffEntry* entry : shared) {
    const std::int64_t numel = entry->shape_a.numel();
    for (std::int64_t begin = 0; begin < numel; begin += kChunkNumel) {
      const std::int64_t count = std::min(kChunkNumel, numel - begin);
      side_a.read(*entry, begin, count);
      side_b.read(*entry, begin, count);
      compare_chunk(side_a, side_b, begin, count, *entry);
      done += count;
      if (progress) progress(done, total);
    }
  }
  a.source->finish();
  b.source->finish();
  return report;
}

}  // namespace mica::checkpoint
