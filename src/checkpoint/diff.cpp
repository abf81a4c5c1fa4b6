#include "mica/checkpoint/diff.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "parameter_reader.hpp"

namespace mica::checkpoint {
namespace {

constexpr std::int64_t kChunkNumel = kBlockBytes / 4;

/// Names and shapes in module order.
std::vector<fsdp::ParameterSpec> parameters_of(const Manifest& manifest) {
  std::vector<fsdp::ParameterSpec> all;
  for (const UnitEntry& unit : manifest.units) all.insert(all.end(), unit.parameters.begin(), unit.parameters.end());
  return all;
}

/// master, then the optimizer's kinds of both sides.
std::vector<std::string> kinds_of(const Manifest& a, const Manifest& b) {
  std::vector<std::string> kinds{std::string(kMasterKind)};
  for (const auto* list : {&a.state_kinds, &b.state_kinds}) {
    for (const std::string& kind : *list) {
      if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
    }
  }
  return kinds;
}

/// The entries to fill in: which parameter and kind is on which side.
std::vector<DiffEntry> list_entries(const ParameterReader& a, const ParameterReader& b) {
  const std::vector<fsdp::ParameterSpec> of_a = parameters_of(a.manifest());
  const std::vector<fsdp::ParameterSpec> of_b = parameters_of(b.manifest());
  std::map<std::string, Shape> shapes_of_b;
  for (const fsdp::ParameterSpec& p : of_b) shapes_of_b[p.name] = p.shape;
  std::vector<fsdp::ParameterSpec> all = of_a;
  for (const fsdp::ParameterSpec& p : of_b) {
    if (std::ranges::find(of_a, p.name, &fsdp::ParameterSpec::name) == of_a.end()) all.push_back(p);
  }
  std::vector<DiffEntry> entries;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const std::string& kind : kinds_of(a.manifest(), b.manifest())) {
      const bool in_a = i < of_a.size() && a.has(all[i].name, kind);
      const bool in_b = b.has(all[i].name, kind);
      if (!in_a && !in_b) continue;
      DiffEntry entry{.parameter = all[i].name, .kind = kind};
      if (in_a) entry.shape_a = all[i].shape;
      if (in_b) entry.shape_b = shapes_of_b.at(all[i].name);
      if (!in_b) entry.result = DiffEntry::Result::only_in_a;
      if (!in_a) entry.result = DiffEntry::Result::only_in_b;
      if (in_a && in_b && entry.shape_a != entry.shape_b) entry.result = DiffEntry::Result::other_shape;
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

void compare_chunk(const float* a, const float* b, std::int64_t begin, std::int64_t numel, DiffEntry& entry) {
  if (std::memcmp(a, b, static_cast<std::size_t>(numel) * 4) == 0) return;
  entry.result = DiffEntry::Result::different;
  for (std::int64_t i = 0; i < numel; ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i])) continue;
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    // The first difference is at least a place; a NaN, once seen, stays.
    const bool is_larger = entry.num_different == 0 || difference > entry.max_difference || std::isnan(difference);
    if (is_larger && !std::isnan(entry.max_difference)) {
      entry.max_difference = difference;
      entry.max_at = begin + i;
    }
    ++entry.num_different;
  }
}

std::string optimizer_difference(const Manifest& a, const Manifest& b) {
  if (a.optimizer == b.optimizer && a.optimizer_steps == b.optimizer_steps) return "";
  const auto describe = [](const Manifest& m) {
    return m.optimizer.empty() ? std::string("none") : fmt::format("{} after {} steps", m.optimizer, m.optimizer_steps);
  };
  return fmt::format("{} in A, {} in B", describe(a), describe(b));
}

}  // namespace

bool DiffReport::is_equal() const {
  return optimizer_difference.empty() && num_equal() == static_cast<std::int64_t>(entries.size());
}

std::int64_t DiffReport::num_equal() const {
  return std::ranges::count(entries, DiffEntry::Result::equal, &DiffEntry::result);
}

DiffReport diff(const std::string& folder_a, const std::string& folder_b,
                const std::function<void(std::int64_t, std::int64_t)>& progress) {
  ParameterReader a(folder_a);
  ParameterReader b(folder_b);
  DiffReport report{list_entries(a, b), optimizer_difference(a.manifest(), b.manifest())};
  std::vector<DiffEntry*> shared;
  std::int64_t total = 0;
  for (DiffEntry& entry : report.entries) {
    if (entry.result != DiffEntry::Result::equal) continue;
    shared.push_back(&entry);
    total += entry.shape_a.numel();
  }
  // Kind by kind, so that each dataset is read from its begin to its end.
  const std::vector<std::string> kinds = kinds_of(a.manifest(), b.manifest());
  std::ranges::stable_sort(shared, {}, [&](const DiffEntry* e) { return std::ranges::find(kinds, e->kind); });
  std::vector<float> chunk_a(static_cast<std::size_t>(kChunkNumel));
  std::vector<float> chunk_b(static_cast<std::size_t>(kChunkNumel));
  std::int64_t done = 0;
  for (DiffEntry* entry : shared) {
    const std::int64_t numel = entry->shape_a.numel();
    for (std::int64_t begin = 0; begin < numel; begin += kChunkNumel) {
      const std::int64_t count = std::min(kChunkNumel, numel - begin);
      a.read(entry->parameter, entry->kind, begin, count, chunk_a.data());
      b.read(entry->parameter, entry->kind, begin, count, chunk_b.data());
      compare_chunk(chunk_a.data(), chunk_b.data(), begin, count, *entry);
      done += count;
      if (progress) progress(done, total);
    }
  }
  return report;
}

}  // namespace mica::checkpoint
