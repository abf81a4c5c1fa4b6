// SPDX-License-Identifier: Apache-2.0
// User buffers of communicators. NCCL refuses little and leaves out what it cannot use; here whatever would be of no
// use is refused.
#include "nccl_registrations.hpp"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "api.hpp"
#include "cuda_emulation.hpp"
#include "memory.hpp"
#include "nccl_comm.hpp"

namespace mica::cuda_emulation {

namespace {

struct Registration {
  const ncclComm* comm = nullptr;
  std::uintptr_t begin = 0, end = 0;
};

struct Registrations {
  std::mutex mutex;
  std::uintptr_t next = 1;
  std::map<std::uintptr_t, Registration> by_handle;
};
Registrations& registrations() {
  static auto& all = *new Registrations;
  return all;
}

ncclResult_t enter(ncclComm_t comm) { return check_ready(find_communicator(comm)); }

}  // namespace

std::ptrdiff_t registered_offset(const ncclComm* comm, const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::lock_guard lock(registrations().mutex);
  for (const auto& [handle, it] : registrations().by_handle) {
    if (it.comm == comm && it.begin <= begin && begin + bytes <= it.end) return static_cast<std::ptrdiff_t>(begin - it.begin);
  }
  return -1;
}

void forget_registrations(const ncclComm* comm) {
  const std::lock_guard lock(registrations().mutex);
  std::erase_if(registrations().by_handle, [&](const auto& entry) { return entry.second.comm == comm; });
}

void check_not_registered(std::uintptr_t begin, std::size_t bytes) {
  const std::lock_guard lock(registrations().mutex);
  for (const auto& [handle, it] : registrations().by_handle) {
    if (it.end <= begin || begin + bytes <= it.begin) continue;
    std::fprintf(stderr, "CUDA emulation: memory goes that is registered with NCCL (rank %d of %d)\n", it.comm->rank, it.comm->num_ranks);
    std::abort();
  }
}

std::int64_t registered_now() {
  const std::lock_guard lock(registrations().mutex);
  return static_cast<std::int64_t>(registrations().by_handle.size());
}

}  // namespace mica::cuda_emulation

using namespace mica::cuda_emulation;

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, std::size_t size, void** handle) {
  static auto& api = Api::named("ncclCommRegister");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<ncclResult_t>(ordered);
  if (const auto result = enter(comm); result != ncclSuccess) return result;
  const Registration made{comm, reinterpret_cast<std::uintptr_t>(buff), reinterpret_cast<std::uintptr_t>(buff) + size};
  const auto piece = Memory::instance().piece_of(buff);
  if (size == 0 || made.end > piece.end) return nccl_failed(ncclInvalidArgument, "not within one piece of a GPU's memory");
  if (!piece.shareable) return nccl_failed(ncclInvalidArgument, "memory that nobody else can be let into");
  const std::lock_guard lock(registrations().mutex);
  for (const auto& [known, it] : registrations().by_handle) {
    if (it.comm == comm && it.begin < made.end && made.begin < it.end) return nccl_failed(ncclInvalidUsage, "registered twice");
  }
  const std::uintptr_t number = registrations().next++;
  registrations().by_handle[number] = made;
  *handle = reinterpret_cast<void*>(number);  // NOLINT(performance-no-int-to-ptr)
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  static auto& api = Api::named("ncclCommDeregister");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<ncclResult_t>(ordered);
  if (const auto result = enter(comm); result != ncclSuccess) return result;
  const std::lock_guard lock(registrations().mutex);
  const auto it = registrations().by_handle.find(reinterpret_cast<std::uintptr_t>(handle));
  if (it == registrations().by_handle.end() || it->second.comm != comm) {
    return nccl_failed(ncclInvalidUsage, "nothing of this communicator is registered under that handle");
  }
  registrations().by_handle.erase(it);
  return ncclSuccess;
}
