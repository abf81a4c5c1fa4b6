#include "mica/device/device_memory.hpp"

#include <cstring>

namespace mica {

DeviceKind device_of(const Pool& pool) {
  const auto* memory = dynamic_cast<const DeviceMemory*>(&pool);
  return memory ? memory->device() : DeviceKind::cpu;
}

DeviceKind device_of(const Pool& pool, const void* data) {
  const auto* memory = dynamic_cast<const DeviceMemory*>(&pool);
  return memory ? memory->device_of(data) : DeviceKind::cpu;
}

void copy_now(const Pool& pool, void* to, const void* from, std::int64_t bytes) {
  if (const auto* memory = dynamic_cast<const DeviceMemory*>(&pool)) return memory->copy(to, from, bytes);
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

std::string device_kind_name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu: return "the CPU";
    case DeviceKind::cuda: return "the GPU";
  }
  return "device " + std::to_string(static_cast<int>(kind));
}

}  // namespace mica
