// SPDX-License-Identifier: Apache-2.0
#include "given_states.hpp"

#include "mica/fsdp/buffer_storage.hpp"

namespace mica::fsdp {
namespace {

void check_one(const char* what, const std::string& name, DeviceKind found, DeviceKind expected, bool move_to_device) {
  if (found == expected || (move_to_device && found == DeviceKind::cpu)) return;
  throw ConfigError(fmt::format("{} {} has data on {}, but its unit computes on {}: {}", what, name, device_kind_name(found),
                                device_kind_name(expected),
                                found == DeviceKind::cpu ? "set InitializeOptions::move_to_device, or give it data there"
                                                         : "only host memory can be moved; give it data there"));
}

}  // namespace

void check_devices(const Unit& unit, bool move_to_device) {
  if (!unit.storage()) return;
  const DeviceMesh& device_mesh = unit.device_mesh();
  const UnitParameter* first = nullptr;
  for (const UnitParameter& p : unit.storage()->parameters()) {
    if (!p.parameter->data) continue;
    const DeviceKind found = device_mesh.pool().device_of(p.parameter->data.data);
    if (!first) first = &p;
    const DeviceKind of_first = device_mesh.pool().device_of(first->parameter->data.data);
    require<ConfigError>(move_to_device || found == of_first,
                         "the parameters of unit {} are on several devices: {} is on {} and {} on {}; give them data on {}, or set "
                         "InitializeOptions::move_to_device",
                         unit.name(), first->full_name, device_kind_name(of_first), p.full_name, device_kind_name(found),
                         device_kind_name(device_mesh.device()));
  }
  for (const UnitParameter& p : unit.storage()->parameters()) {
    if (!p.parameter->data) continue;
    check_one("parameter", p.full_name, device_mesh.pool().device_of(p.parameter->data.data), device_mesh.device(), move_to_device);
  }
}

void check_devices(const BufferStorage& buffers, bool move_to_device) {
  const DeviceMesh& device_mesh = buffers.device_mesh();
  for (const BufferStorage::Entry& entry : buffers.entries()) {
    if (!entry.buffer->data) continue;
    check_one("buffer", entry.full_name, device_mesh.pool().device_of(entry.buffer->data.data), device_mesh.device(), move_to_device);
  }
}

}  // namespace mica::fsdp
