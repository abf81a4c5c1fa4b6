// SPDX-License-Identifier: Apache-2.0
#include "state_exchange.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "mica/core/rounding.hpp"
#include "mica/tensor/host_math.hpp"

namespace mica::fsdp {
namespace {

constexpr std::int64_t kAlignmentBytes = 64;

const StateArray& array_of(const StateArrays& arrays, const FoundRun& found) { return arrays.all[static_cast<std::size_t>(found.array)]; }

/// The run with the least value is chosen.
std::tuple<std::int64_t, std::int64_t, std::int64_t> preference(const FoundRun& f) { return {-f.run.end, f.rank, f.dict}; }

}  // namespace

void check_tensor(const StateArray& array, const StateTensor& tensor) {
  require<ConfigError>(tensor.global_shape() == array.shape, "{} has shape {} in the state dict, {} in the model", array.key,
                       tensor.global_shape().to_string(), array.shape.to_string());
  require<ConfigError>(can_convert(tensor.dtype(), array.dtype), "{} has dtype {} in the state dict, {} in the model", array.key,
                       dtype_name(tensor.dtype()), dtype_name(array.dtype));
  const std::int64_t begin = tensor.row_begin(), rows = rows_of(tensor.shape());
  require<ConfigError>(tensor.shape() == with_rows(array.shape, rows) && begin >= 0 && begin + rows <= rows_of(array.shape),
                       "{} of shape {} has rows [{}, {}) of shape {} in the state dict", array.key, array.shape.to_string(), begin,
                       begin + rows, tensor.shape().to_string());
}

std::vector<FoundRun> find_runs(const StateArrays& arrays, std::span<const StateDict> dicts, int rank) {
  std::vector<FoundRun> found;
  for (std::size_t d = 0; d < dicts.size(); ++d) {
    for (std::size_t i = 0; i < arrays.all.size(); ++i) {
      const auto entry = dicts[d].find(arrays.all[i].key);
      if (entry == dicts[d].end()) continue;
      const StateTensor& tensor = entry->second;
      check_tensor(arrays.all[i], tensor);
      const std::int64_t begin = tensor.row_begin() * row_numel_of(tensor.shape());
      found.push_back({static_cast<std::int64_t>(i), {begin, begin + tensor.numel(), 0}, rank, static_cast<std::int64_t>(d)});
    }
  }
  return found;
}

std::vector<FoundRun> choose_runs(const StateArrays& arrays, std::vector<FoundRun> found, std::vector<std::string>& missing) {
  std::ranges::sort(found, {}, [](const FoundRun& f) { return std::tuple(f.array, f.run.begin, f.rank, f.dict); });
  std::vector<FoundRun> chosen;
  for (std::size_t i = 0; i < arrays.all.size(); ++i) {
    const StateArray& array = arrays.all[i];
    const auto of_array = std::ranges::equal_range(found, static_cast<std::int64_t>(i), {}, &FoundRun::array);
    if (of_array.empty()) {
      missing.push_back(array.key);
      continue;
    }
    const std::int64_t row_numel = row_numel_of(array.shape), numel = array.shape.numel();
    auto next = of_array.begin();
    FoundRun best = *next;  // of those that begin at `at` or before
    for (std::int64_t at = 0; at < numel; at = best.run.end) {
      for (; next != of_array.end() && next->run.begin <= at; ++next) best = std::ranges::min(best, *next, {}, preference);
      if (best.run.begin > at || best.run.end <= at) {
        next = std::find_if(next, of_array.end(), [](const FoundRun& f) { return f.run.numel() > 0; });
        throw ConfigError(fmt::format("no rank has rows [{}, {}) of {} {} in its state dict", at / row_numel,
                                      (next == of_array.end() ? numel : next->run.begin) / row_numel, array.key, array.shape.to_string()));
      }
      chosen.push_back({best.array, {at, best.run.end, at - best.run.begin}, best.rank, best.dict});
    }
  }
  return chosen;
}

void exchange(const StateArrays& arrays, const std::vector<FoundRun>& chosen, std::span<const StateDict> dicts) {
  // In module order of the units, whole arrays last; then by source.
  std::map<std::pair<std::size_t, std::int64_t>, std::vector<FoundRun>> messages;
  for (const FoundRun& each : chosen) {
    const auto order = std::ranges::find(arrays.units, array_of(arrays, each).unit) - arrays.units.begin();
    messages[{static_cast<std::size_t>(order), each.rank}].push_back(each);
  }
  for (const auto& [order_and_rank, runs] : messages) {
    DeviceMesh& device_mesh = arrays.device_mesh_of(array_of(arrays, runs.front()));
    Stream& compute = device_mesh.compute();
    const auto bytes_of = [&](const FoundRun& f) { return f.run.numel() * dtype_bytes(array_of(arrays, f).dtype); };
    std::int64_t bytes = 0;
    for (const FoundRun& each : runs) bytes += round_up(bytes_of(each), kAlignmentBytes);
    const Buffer buffer = device_mesh.pool().allocate(bytes, MemoryRole::communication, compute);
    const TensorView message{buffer.data(), Shape{bytes}, DType::u8};
    const auto for_each_slot = [&, &runs = runs](auto&& visit) {
      std::int64_t at = 0;
      for (const FoundRun& each : runs) {
        const StateArray& array = array_of(arrays, each);
        visit(each, array, TensorView(message.slice(at, bytes_of(each)).data, Shape{each.run.numel()}, array.dtype));
        at += round_up(bytes_of(each), kAlignmentBytes);
      }
    };
    const std::int64_t source = order_and_rank.second;
    if (device_mesh.mesh().rank() == source) {
      device_mesh.kernels().fill(compute, message, 0);
      for_each_slot([&](const FoundRun& each, const StateArray& array, TensorView slot) {
        const StateTensor& tensor = dicts[static_cast<std::size_t>(each.dict)].find(array.key)->second;
        device_mesh.kernels().copy(compute, tensor.view().slice(each.run.offset, slot.numel()), slot);
      });
    }
    device_mesh.mesh().world().broadcast(compute, "load_state_dict", message, static_cast<int>(source));
    for_each_slot([&](const FoundRun& each, const StateArray& array, TensorView slot) { store(arrays, array, each.run.begin, slot); });
  }
}

}  // namespace mica::fsdp
