// SPDX-License-Identifier: Apache-2.0
// NCCL itself and its communicators.
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include <nccl.h>
#include <unistd.h>

#include "api.hpp"
#include "memory.hpp"
#include "nccl_comm.hpp"
#include "nccl_registrations.hpp"

using namespace mica::cuda_emulation;

namespace mica::cuda_emulation {

namespace {

thread_local std::string last_text;

struct Communicators {
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<ncclComm>> living;
  std::map<std::string, std::weak_ptr<Clique>> cliques;  ///< by unique id
  std::uint64_t next_id = 1;
};
Communicators& communicators() {
  static auto& all = *new Communicators;
  return all;
}

/// Forgets the handle. @return what it was, null if nothing
std::shared_ptr<ncclComm> take(ncclComm_t comm) {
  const std::lock_guard lock(communicators().mutex);
  const auto it = communicators().living.find(comm);
  if (it == communicators().living.end()) return nullptr;
  auto taken = it->second;
  communicators().living.erase(it);
  return taken;
}

std::string own_prefix() { return "mica-emulated-" + std::to_string(getpid()) + "-"; }

}  // namespace

std::shared_ptr<ncclComm> find_communicator(ncclComm_t comm) {
  const std::lock_guard lock(communicators().mutex);
  const auto it = communicators().living.find(comm);
  return it == communicators().living.end() ? nullptr : it->second;
}

ncclResult_t no_communicator() { return nccl_failed(ncclInvalidArgument, "no such communicator"); }

ncclResult_t check_ready(const std::shared_ptr<ncclComm>& comm) {
  if (comm == nullptr) return no_communicator();
  if (comm->polls > 0 || comm->clique->state() == ncclInProgress) {
    return nccl_failed(ncclInvalidArgument, "Attempt to use communicator before the previous operation returned ncclSuccess");
  }
  if (comm->error != ncclSuccess) return comm->error;
  if (const auto state = comm->clique->state(); state != ncclSuccess) return state;
  return comm->is_finalized ? nccl_failed(ncclInvalidUsage, "the communicator is finalized") : ncclSuccess;
}

ncclResult_t under_way(ncclComm& comm) {
  if (comm.is_blocking) return ncclSuccess;
  comm.polls = 1;
  return ncclInProgress;
}

ncclResult_t nccl_failed(ncclResult_t result, std::string text) {
  last_text = std::move(text);
  return result;
}

}  // namespace mica::cuda_emulation

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}
const char* ncclGetLastError(ncclComm_t) { return last_text.c_str(); }

ncclResult_t ncclMemAlloc(void** ptr, std::size_t size) {
  *ptr = Memory::instance().allocate(size, current_device());
  return *ptr == nullptr ? ncclUnhandledCudaError : ncclSuccess;
}
ncclResult_t ncclMemFree(void* ptr) { return ptr == nullptr || Memory::instance().free(ptr) ? ncclSuccess : ncclInvalidArgument; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
  static auto& api = Api::named("ncclGetUniqueId");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<ncclResult_t>(ordered);
  const std::lock_guard lock(communicators().mutex);
  *uniqueId = {};
  const std::string text = own_prefix() + std::to_string(communicators().next_id++);
  std::memcpy(uniqueId->internal, text.data(), text.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  return ncclCommInitRankConfig(comm, nranks, commId, rank, &config);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config) {
  static auto& api = Api::named("ncclCommInitRankConfig");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<ncclResult_t>(ordered);
  const ncclConfig_t expected = NCCL_CONFIG_INITIALIZER;
  if (device_count() == 0) return nccl_failed(ncclUnhandledCudaError, "no CUDA-capable device is detected");
  if (nranks < 1 || rank < 0 || rank >= nranks) return nccl_failed(ncclInvalidArgument, "no such rank");
  if (config == nullptr || config->size != expected.size || config->magic != expected.magic) {
    return nccl_failed(ncclInvalidArgument, "the configuration was not made by NCCL_CONFIG_INITIALIZER");
  }
  const std::string id(commId.internal, strnlen(commId.internal, sizeof(commId.internal)));
  if (id.compare(0, own_prefix().size(), own_prefix()) != 0) {
    return nccl_failed(ncclSystemError, "the emulated NCCL connects threads of one process only");
  }
  auto made = std::make_shared<ncclComm>();
  made->rank = rank;
  made->num_ranks = nranks;
  made->device = current_device();
  made->is_blocking = config->blocking != 0;
  {
    const std::lock_guard lock(communicators().mutex);
    made->clique = communicators().cliques[id].lock();
    if (made->clique == nullptr) {
      made->clique = std::make_shared<Clique>(nranks);
      communicators().cliques[id] = made->clique;
    }
    communicators().living[made.get()] = made;
  }
  *comm = made.get();
  auto result = made->clique->join(made);
  if (result == ncclSuccess && !made->is_blocking) return under_way(*made);
  if (result == ncclSuccess) {
    made->clique->wait_for_all();
    result = made->clique->state();
  }
  if (result != ncclSuccess) {
    take(*comm);
    *comm = nullptr;
  }
  return result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  static auto& api = Api::named("ncclCommGetAsyncError");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<ncclResult_t>(ordered);
  const auto it = find_communicator(comm);
  if (it == nullptr) return no_communicator();
  *asyncError = it->error;
  if (*asyncError != ncclSuccess) return ncclSuccess;
  *asyncError = it->clique->state();
  if (*asyncError == ncclSuccess && it->polls > 0) {
    --it->polls;
    *asyncError = ncclInProgress;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const auto it = find_communicator(comm);
  if (const auto result = check_ready(it); result != ncclSuccess) return result;
  it->is_finalized = true;
  return under_way(*it);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  static auto& api = Api::named("ncclCommDestroy");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<ncclResult_t>(ordered);
  const auto it = take(comm);
  if (it == nullptr) return no_communicator();
  work_until([&] { return it->num_enqueued == 0; }, "ncclCommDestroy");
  it->clique->abort(*it);
  forget_registrations(it.get());
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  static auto& api = Api::named("ncclCommAbort");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<ncclResult_t>(ordered);
  const auto it = take(comm);
  if (it == nullptr) return no_communicator();
  it->clique->abort(*it);
  forget_registrations(it.get());
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  const auto it = find_communicator(comm);
  if (it == nullptr) return no_communicator();
  *count = it->num_ranks;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  const auto it = find_communicator(comm);
  if (it == nullptr) return no_communicator();
  *device = it->device;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  const auto it = find_communicator(comm);
  if (it == nullptr) return no_communicator();
  *rank = it->rank;
  return ncclSuccess;
}
