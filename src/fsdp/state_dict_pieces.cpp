#include "state_dict_pieces.hpp"

#include <algorithm>
#include <map>

#include "mica/core/rounding.hpp"
#include "mica/tensor/host_math.hpp"

namespace mica::fsdp {
namespace {

constexpr std::int64_t kAlignmentBytes = 64;

/// The world and the device of a unit; for what no unit shards, of the first root.
DeviceMesh& device_mesh_of(const StateItems& items, const Unit* unit) {
  return unit ? unit->device_mesh() : items.roots.front()->device_mesh();
}

/// Elements of `rows` in one buffer, each from an aligned place on. @returns the places and the bytes of all.
std::pair<std::vector<std::int64_t>, std::int64_t> place_rows(const StateItems& items, const std::vector<RowsAt>& rows) {
  std::vector<std::int64_t> places;
  std::int64_t bytes = 0;
  for (const RowsAt& each : rows) {
    const StateItem& item = items.items[static_cast<std::size_t>(each.item)];
    places.push_back(bytes);
    const std::int64_t own = (each.end - each.begin) * row_numel_of(item.shape) * dtype_bytes(item.dtype);
    bytes += round_up(own, kAlignmentBytes);
  }
  return {places, bytes};
}

}  // namespace

void check_tensor(const StateItem& item, const StateTensor& tensor) {
  require<ConfigError>(tensor.global_shape() == item.shape, "{} has shape {} in the state dict, {} in the model", item.key,
                       tensor.global_shape().to_string(), item.shape.to_string());
  require<ConfigError>(can_convert(tensor.dtype(), item.dtype),
                       "{} has dtype {} in the state dict, {} in the model", item.key, dtype_name(tensor.dtype()),
                       dtype_name(item.dtype));
  const std::int64_t begin = tensor.row_begin(), rows = rows_of(tensor.shape());
  require<ConfigError>(tensor.shape() == with_rows(item.shape, rows) && begin >= 0 && begin + rows <= rows_of(item.shape),
                       "{} of shape {} has rows [{}, {}) of shape {} in the state dict", item.key, item.shape.to_string(),
                       begin, begin + rows, tensor.shape().to_string());
}

std::vector<RowsAt> rows_in(const StateItems& items, std::span<const StateDict> parts, int rank) {
  std::vector<RowsAt> found;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (std::size_t i = 0; i < items.items.size(); ++i) {
      const auto entry = parts[part].find(items.items[i].key);
      if (entry == parts[part].end()) continue;
      const StateTensor& tensor = entry->second;
      check_tensor(items.items[i], tensor);
      found.push_back({static_cast<std::int64_t>(i), tensor.row_begin(), tensor.row_begin() + rows_of(tensor.shape()), rank,
                       static_cast<std::int64_t>(part)});
    }
  }
  return found;
}

std::vector<RowsAt> choose_rows(const StateItems& items, std::vector<RowsAt> found, std::vector<std::string>& missing) {
  std::ranges::stable_sort(found, {}, [](const RowsAt& r) { return std::tuple(r.item, r.source, r.part); });
  std::vector<RowsAt> chosen;
  for (std::size_t i = 0; i < items.items.size(); ++i) {
    const StateItem& item = items.items[i];
    const auto [first, last] = std::ranges::equal_range(found, static_cast<std::int64_t>(i), {}, &RowsAt::item);
    if (first == last) {
      missing.push_back(item.key);
      continue;
    }
    std::int64_t end = 0;
    while (end < rows_of(item.shape)) {
      const RowsAt* best = nullptr;
      std::int64_t next_begin = rows_of(item.shape);
      for (const RowsAt& each : std::span(first, last)) {
        if (each.begin <= end && each.end > end && (!best || each.end > best->end)) best = &each;
        if (each.begin > end && each.end > each.begin) next_begin = std::min(next_begin, each.begin);
      }
      require<ConfigError>(best != nullptr, "no rank has rows [{}, {}) of {} {} in its state dict", end, next_begin, item.key,
                           item.shape.to_string());
      chosen.push_back({best->item, end, best->end, best->source, best->part});
      end = best->end;
    }
  }
  return chosen;
}

void store_rows(const StateItems& items, const StateItem& item, std::int64_t begin, ConstTensorView src) {
  if (src.numel() == 0) return;
  const std::int64_t first = begin * row_numel_of(item.shape);
  if (item.unit) {
    scatter_range(*item.unit, item.index, first, src.reshaped(Shape{src.numel()}), item.unit->storage()->write_master());
  } else {
    DeviceMesh& device_mesh = device_mesh_of(items, nullptr);
    device_mesh.kernels().copy(device_mesh.compute(), src, item.data.slice(first, src.numel()));
  }
}

void exchange_rows(const StateItems& items, const std::vector<RowsAt>& chosen, std::span<const StateDict> parts) {
  // In module order of the units, what no unit shards last; then by source.
  std::map<std::pair<std::size_t, std::int64_t>, std::vector<RowsAt>> messages;
  for (const RowsAt& rows : chosen) {
    const Unit* unit = items.items[static_cast<std::size_t>(rows.item)].unit;
    const auto order = static_cast<std::size_t>(std::ranges::find(items.units, unit) - items.units.begin());
    messages[{order, rows.source}].push_back(rows);
  }
  for (const auto& [order_and_source, rows] : messages) {
    const auto [order, source] = order_and_source;
    DeviceMesh& device_mesh = device_mesh_of(items, order < items.units.size() ? items.units[order] : nullptr);
    Stream& compute = device_mesh.compute();
    const auto [places, bytes] = place_rows(items, rows);
    const Buffer buffer = device_mesh.pool().allocate(bytes, MemoryRole::communication, compute);
    const TensorView message{buffer.data(), Shape{bytes}, DType::u8};
    const auto slot_of = [&, &places = places](std::size_t i) {
      const StateItem& item = items.items[static_cast<std::size_t>(rows[i].item)];
      const Shape shape{(rows[i].end - rows[i].begin) * row_numel_of(item.shape)};
      return TensorView{message.slice(places[i], shape.numel() * dtype_bytes(item.dtype)).data, shape, item.dtype};
    };
    if (device_mesh.mesh().rank() == source) {
      device_mesh.kernels().fill(compute, message, 0);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const StateItem& item = items.items[static_cast<std::size_t>(rows[i].item)];
        const StateTensor& tensor = parts[static_cast<std::size_t>(rows[i].part)].find(item.key)->second;
        const std::int64_t first = (rows[i].begin - tensor.row_begin()) * row_numel_of(item.shape);
        const TensorView slot = slot_of(i);
        if (slot.numel() > 0) device_mesh.kernels().copy(compute, tensor.view().slice(first, slot.numel()), slot);
      }
    }
    device_mesh.mesh().world().broadcast(compute, "load_state_dict", message, static_cast<int>(source));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      store_rows(items, items.items[static_cast<std::size_t>(rows[i].item)], rows[i].begin, slot_of(i));
    }
  }
}

}  // namespace mica::fsdp
