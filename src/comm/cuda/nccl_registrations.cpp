// SPDX-License-Identifier: Apache-2.0
#include "nccl_registrations.hpp"

#include "mica/core/error.hpp"

namespace mica::nccl {

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 1)
bool can_register() {
  int version = 0;
  check(ncclGetVersion(&version), "ncclGetVersion");
  return version >= NCCL_VERSION(2, 19, 1);
}

void Registrations::add(void* begin, std::int64_t bytes) {
  const auto [it, is_new] = handles_.try_emplace(begin, nullptr);
  if (!is_new) return;
  try {
    communicator_.run([&](ncclComm_t comm) { return ncclCommRegister(comm, begin, static_cast<std::size_t>(bytes), &it->second); },
                      "ncclCommRegister");
  } catch (...) {
    handles_.erase(it);
    throw;
  }
}

void Registrations::close(void* handle) noexcept {
  if (handle == nullptr) return;  // NCCL did not register it (NCCL_LOCAL_REGISTER=0)
  try {
    communicator_.run([&](ncclComm_t comm) { return ncclCommDeregister(comm, handle); }, "ncclCommDeregister");
  } catch (const NcclError&) {  // aborted: its registrations ended with it
  }
}
#else
bool can_register() { return false; }
void Registrations::add(void*, std::int64_t) {}
void Registrations::close(void*) noexcept {}
#endif

Registrations::~Registrations() {
  for (const auto& [begin, handle] : handles_) close(handle);
}

void Registrations::forget_block(const void* begin) noexcept {
  const auto it = handles_.find(begin);
  if (it == handles_.end()) return;
  close(it->second);
  handles_.erase(it);
}

}  // namespace mica::nccl
