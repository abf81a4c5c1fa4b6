// NCCL's functions: arguments are checked here, ranks meet in Clique.
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include <nccl.h>
#include <unistd.h>

#include "api.hpp"
#include "memory.hpp"
#include "nccl_comm.hpp"
#include "streams.hpp"

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

std::shared_ptr<ncclComm> find(ncclComm_t comm) {
  const std::lock_guard lock(communicators().mutex);
  const auto it = communicators().living.find(comm);
  return it == communicators().living.end() ? nullptr : it->second;
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

ncclResult_t no_communicator() { return nccl_failed(ncclInvalidArgument, "no such communicator"); }

/// A communicator whose last call has come to its end without an error.
ncclResult_t check_ready(const std::shared_ptr<ncclComm>& comm) {
  if (comm == nullptr) return no_communicator();
  if (comm->polls > 0 || comm->clique->state() == ncclInProgress) {
    return nccl_failed(ncclInvalidArgument,
                       "Attempt to use communicator before the previous operation returned ncclSuccess");
  }
  if (comm->error != ncclSuccess) return comm->error;
  if (const auto state = comm->clique->state(); state != ncclSuccess) return state;
  return comm->is_finalized ? nccl_failed(ncclInvalidUsage, "the communicator is finalized") : ncclSuccess;
}

/// The answer of a call that is under way: a communicator that does not block wants to be asked.
ncclResult_t under_way(ncclComm& comm) {
  if (comm.is_blocking) return ncclSuccess;
  comm.polls = 1;
  return ncclInProgress;
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto *first = static_cast<const char*>(a), *second = static_cast<const char*>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

ncclResult_t check_memory(const Operation& it) {
  for (const auto& [data, bytes] :
       {std::pair<const void*, std::size_t>(it.send, it.send_bytes()), {it.receive, it.receive_bytes()}}) {
    const auto found = Memory::instance().find(data, bytes);
    if (bytes > 0 && (found.place == Place::pageable || !found.whole)) {
      return nccl_failed(ncclInvalidArgument, std::string(name(it.kind)) + ": memory that the GPU cannot reach");
    }
  }
  // In place is where NCCL says; anything else that overlaps is undefined there and refused here.
  const auto rank_bytes = it.bytes() * static_cast<std::size_t>(it.comm->rank);
  const auto* send = static_cast<const char*>(it.send);
  const auto* receive = static_cast<const char*>(it.receive);
  const bool in_place = it.kind == OperationKind::all_gather       ? send == receive + rank_bytes
                        : it.kind == OperationKind::reduce_scatter ? receive == send + rank_bytes
                                                                   : send == receive;
  if (in_place || !overlap(send, it.send_bytes(), receive, it.receive_bytes())) return ncclSuccess;
  return nccl_failed(ncclInvalidArgument, std::string(name(it.kind)) + ": buffers overlap, but not in place");
}

/// Operations between ncclGroupStart and ncclGroupEnd.
struct Group {
  int depth = 0;
  std::vector<Operation> operations;
};
Group& group() {
  thread_local Group it;
  return it;
}

/// All are brought before one is waited for.
ncclResult_t run(std::vector<Operation> operations) {
  std::vector<std::shared_ptr<Meeting>> meetings;
  for (const auto& it : operations) meetings.push_back(it.comm->clique->post(it));
  ncclResult_t result = ncclSuccess;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    operations[i].comm->clique->wait(operations[i], *meetings[i]);
    result = std::max(result, under_way(*operations[i].comm));
  }
  return result;
}

ncclResult_t enqueue(Api& api, Operation operation, ncclComm_t handle) {
  if (const int ordered = api.enter(); ordered != 0) return static_cast<ncclResult_t>(ordered);
  if (in_host_function()) return nccl_failed(ncclUnhandledCudaError, "called from a host function of a stream");
  operation.comm = find(handle);
  if (const auto result = check_ready(operation.comm); result != ncclSuccess) return result;
  if (operation.root < 0 || operation.root >= operation.comm->num_ranks || operation.reduction >= ncclNumOps) {
    return nccl_failed(ncclInvalidArgument, std::string(name(operation.kind)) + ": no such rank or operation");
  }
  if (!is_stream(operation.stream) || device_of(operation.stream) != operation.comm->device) {
    return nccl_failed(ncclUnhandledCudaError, "the stream is not of the communicator's GPU");
  }
  if (const auto result = check_memory(operation); result != ncclSuccess) return result;
  if (group().depth > 0) {
    group().operations.push_back(std::move(operation));
    return ncclSuccess;
  }
  return run({std::move(operation)});
}

}  // namespace

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
ncclResult_t ncclMemFree(void* ptr) {
  return ptr == nullptr || Memory::instance().free(ptr) ? ncclSuccess : ncclInvalidArgument;
}

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
  const auto it = find(comm);
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
  const auto it = find(comm);
  if (const auto result = check_ready(it); result != ncclSuccess) return result;
  it->is_finalized = true;
  return under_way(*it);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  static auto& api = Api::named("ncclCommDestroy");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<ncclResult_t>(ordered);
  const auto it = take(comm);
  if (it == nullptr) return no_communicator();
  it->clique->abort(*it);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  static auto& api = Api::named("ncclCommAbort");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<ncclResult_t>(ordered);
  const auto it = take(comm);
  if (it == nullptr) return no_communicator();
  it->clique->abort(*it);
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  const auto it = find(comm);
  if (it == nullptr) return no_communicator();
  *count = it->num_ranks;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  const auto it = find(comm);
  if (it == nullptr) return no_communicator();
  *device = it->device;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  const auto it = find(comm);
  if (it == nullptr) return no_communicator();
  *rank = it->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, std::size_t size, void** handle) {
  static auto& api = Api::named("ncclCommRegister");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<ncclResult_t>(ordered);
  if (const auto result = check_ready(find(comm)); result != ncclSuccess) return result;
  const auto found = Memory::instance().find(buff, size);
  if (found.place != Place::device || !found.whole) return nccl_failed(ncclInvalidArgument, "not memory of a GPU");
  *handle = buff;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  static auto& api = Api::named("ncclCommDeregister");
  if (const int ordered = api.enter(); ordered != 0) return static_cast<ncclResult_t>(ordered);
  return find(comm) == nullptr || handle == nullptr ? no_communicator() : ncclSuccess;
}

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, std::size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream) {
  static auto& api = Api::named("ncclAllGather");
  return enqueue(api, {OperationKind::all_gather, sendbuff, recvbuff, sendcount, datatype, ncclSum, 0, {}, stream},
                 comm);
}
ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, std::size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  static auto& api = Api::named("ncclReduceScatter");
  return enqueue(api, {OperationKind::reduce_scatter, sendbuff, recvbuff, recvcount, datatype, op, 0, {}, stream},
                 comm);
}
ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, std::size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  static auto& api = Api::named("ncclAllReduce");
  return enqueue(api, {OperationKind::all_reduce, sendbuff, recvbuff, count, datatype, op, 0, {}, stream}, comm);
}
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, std::size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  static auto& api = Api::named("ncclBroadcast");
  return enqueue(api, {OperationKind::broadcast, sendbuff, recvbuff, count, datatype, ncclSum, root, {}, stream}, comm);
}
ncclResult_t ncclSend(const void* sendbuff, std::size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  static auto& api = Api::named("ncclSend");
  return enqueue(api, {OperationKind::send, sendbuff, nullptr, count, datatype, ncclSum, peer, {}, stream}, comm);
}
ncclResult_t ncclRecv(void* recvbuff, std::size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  static auto& api = Api::named("ncclRecv");
  return enqueue(api, {OperationKind::receive, nullptr, recvbuff, count, datatype, ncclSum, peer, {}, stream}, comm);
}

ncclResult_t ncclGroupStart() {
  ++group().depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (group().depth == 0) return nccl_failed(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group().depth > 0) return ncclSuccess;
  return run(std::exchange(group().operations, {}));
}
