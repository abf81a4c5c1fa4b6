#include "mica/fsdp/gathered_unit.hpp"

#include <algorithm>
#include <unordered_map>

#include "mica/fsdp/root.hpp"

namespace mica::fsdp {
namespace {

/// Calls copy(first, last, offset) for the elements that [begin, end) and the run have in common.
template <class Copy>
void for_each_common(const std::vector<Piece::Run>& runs, std::int64_t begin, std::int64_t end, Copy&& copy) {
  for (const Piece::Run& run : runs) {
    const std::int64_t first = std::max(begin, run.begin);
    const std::int64_t last = std::min(end, run.end);
    if (first < last) copy(first, last, run.offset + first - run.begin);
  }
}

}  // namespace

std::vector<std::vector<Piece::Run>> runs_of_rank(const UnitStorage& storage, int shard_rank) {
  std::unordered_map<std::string_view, std::size_t> index;
  for (std::size_t i = 0; i < storage.parameters().size(); ++i) index.emplace(storage.parameters()[i].full_name, i);
  std::vector<std::vector<Piece::Run>> runs(storage.parameters().size());
  for (const Piece& piece : storage.layout().pieces(shard_rank)) {
    std::vector<Piece::Run>& of_parameter = runs[index.at(piece.parameter)];
    for (std::int64_t i = 0; i < piece.num_runs(); ++i) of_parameter.push_back(piece.run(i));
  }
  return runs;
}

GatheredUnit::GatheredUnit(const Unit& unit, ConstTensorView shard) : device_mesh_(unit.device_mesh()), all_(shard) {
  const UnitStorage& storage = *unit.storage();
  const int shard_size = storage.shard_size();
  if (shard_size > 1) {
    Stream& compute = device_mesh_.compute();
    const Shape gathered{shard.numel() * shard_size};
    buffer_ = device_mesh_.pool().allocate(gathered.numel() * dtype_bytes(shard.dtype), MemoryRole::unsharded_param, compute);
    const TensorView all{buffer_.data(), gathered, shard.dtype};
    device_mesh_.mesh().shard().all_gather(compute, unit.name().c_str(), shard, all);
    all_ = all;
  }
  runs_.resize(storage.parameters().size());
  for (int rank = 0; rank < shard_size; ++rank) {
    const std::vector<std::vector<Piece::Run>> of_rank = runs_of_rank(storage, rank);
    for (std::size_t i = 0; i < of_rank.size(); ++i) {
      for (const Piece::Run& run : of_rank[i]) runs_[i].push_back({run.begin, run.end, rank * shard.numel() + run.offset});
    }
  }
}

void GatheredUnit::copy_range(std::size_t i, std::int64_t begin, std::int64_t end, TensorView dst) const {
  for_each_common(runs_[i], begin, end, [&](std::int64_t first, std::int64_t last, std::int64_t offset) {
    device_mesh_.kernels().copy(device_mesh_.compute(), all_.slice(offset, last - first),
                                dst.slice(first - begin, last - first));
  });
}

void scatter_range(const Unit& unit, std::size_t i, std::int64_t begin, ConstTensorView src, TensorView shard) {
  const UnitStorage& storage = *unit.storage();
  DeviceMesh& device_mesh = unit.device_mesh();
  const std::vector<Piece::Run> mine = runs_of_rank(storage, storage.shard_rank())[i];
  for_each_common(mine, begin, begin + src.numel(), [&](std::int64_t first, std::int64_t last, std::int64_t offset) {
    device_mesh.kernels().copy(device_mesh.compute(), src.slice(first - begin, last - first),
                               shard.slice(offset, last - first));
  });
}

std::vector<Unit*> units_below(nn::Module& module, bool recurse) {
  std::vector<Unit*> units;
  const auto add = [&](const std::string&, nn::Module& each) {
    auto* unit = dynamic_cast<Unit*>(each.hooks());
    if (!unit) return;
    static_cast<void>(unit->root());
    units.push_back(unit);
  };
  if (recurse) {
    module.for_each_module(add);
  } else {
    add("", module);
  }
  return units;
}

std::vector<Root*> roots_of(const std::vector<Unit*>& units) {
  std::vector<Root*> roots;
  for (Unit* unit : units) {
    if (std::ranges::find(roots, &unit->root()) == roots.end()) roots.push_back(&unit->root());
  }
  return roots;
}

}  // namespace mica::fsdp
