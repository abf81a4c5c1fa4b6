#include "mica/device/device_memory.hpp"

namespace mica {

DeviceKind device_of(const Pool& pool) {
  const auto* memory = dynamic_cast<const DeviceMemory*>(&pool);
  return memory ? memory->device() : DeviceKind::cpu;
}

DeviceKind device_of(const Pool& pool, const void* data) {
  const auto* memory = dynamic_cast<const DeviceMemory*>(&pool);
  return memory ? memory->device_of(data) : DeviceKind::cpu;
}

std::string device_kind_name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu: return "the CPU";
    case DeviceKind::cuda: return "the GPU";
  }
  return "device " + std::to_string(static_cast<int>(kind));
}

}  // namespace mica
