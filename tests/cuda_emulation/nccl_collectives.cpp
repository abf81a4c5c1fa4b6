// SPDX-License-Identifier: Apache-2.0
// NCCL's collectives, sends and receives: arguments are checked here, ranks meet in Clique.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nccl.h>

#include "api.hpp"
#include "memory.hpp"
#include "nccl_comm.hpp"
#include "nccl_registrations.hpp"
#include "streams.hpp"

using namespace mica::cuda_emulation;

namespace {

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto *first = static_cast<const char*>(a), *second = static_cast<const char*>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

ncclResult_t check_memory(const Operation& it) {
  for (const auto& [data, bytes] : {std::pair<const void*, std::size_t>(it.send, it.send_bytes()), {it.receive, it.receive_bytes()}}) {
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

void find_registrations(Operation& it) {
  const auto send = registered_offset(it.comm.get(), it.send, it.send_bytes());
  const auto receive = registered_offset(it.comm.get(), it.receive, it.receive_bytes());
  it.send_registered = send >= 0;
  it.receive_registered = receive >= 0;
  it.registered_at = it.kind == OperationKind::all_gather ? receive : send;
  if (it.registered_at >= 0) count_registered_operation();
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

/// Operations that a stream brings at once, when its turn has come.
class Brought {
 public:
  explicit Brought(std::vector<Operation> operations) : operations_(std::move(operations)) {}

  Progress proceed() {
    if (meetings_.empty()) {
      for (const auto& it : operations_) meetings_.push_back(it.comm->clique->post(it));
      begin_ = std::chrono::steady_clock::now();
    }
    auto slowest = Progress::done;
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      slowest = std::max(slowest, operations_[i].comm->clique->progress_of(operations_[i], *meetings_[i], begin_));
    }
    if (slowest == Progress::done) {
      for (const auto& it : operations_) --it.comm->num_enqueued;
    }
    return slowest;
  }

 private:
  std::vector<Operation> operations_;
  std::vector<std::shared_ptr<Meeting>> meetings_;
  std::chrono::steady_clock::time_point begin_;
};

/// Stream by stream.
ncclResult_t run(const std::vector<Operation>& operations) {
  std::map<cudaStream_t, std::vector<Operation>> by_stream;
  ncclResult_t result = ncclSuccess;
  for (const auto& it : operations) {
    ++it.comm->num_enqueued;
    by_stream[it.stream].push_back(it);
  }
  for (auto& [stream, brought] : by_stream) {
    enqueue(queue_of(stream), [together = std::make_shared<Brought>(std::move(brought))] { return together->proceed(); });
  }
  for (const auto& it : operations) result = std::max(result, under_way(*it.comm));
  return result;
}

ncclResult_t enqueue(Api& api, Operation operation, ncclComm_t handle) {
  if (const int ordered = api.enter(); ordered != 0) return static_cast<ncclResult_t>(ordered);
  if (in_host_function()) return nccl_failed(ncclUnhandledCudaError, "called from a host function of a stream");
  operation.comm = find_communicator(handle);
  if (const auto result = check_ready(operation.comm); result != ncclSuccess) return result;
  if (operation.root < 0 || operation.root >= operation.comm->num_ranks || operation.reduction >= ncclNumOps) {
    return nccl_failed(ncclInvalidArgument, std::string(name(operation.kind)) + ": no such rank or operation");
  }
  if (!is_stream(operation.stream) || device_of(operation.stream) != operation.comm->device) {
    return nccl_failed(ncclUnhandledCudaError, "the stream is not of the communicator's GPU");
  }
  if (const auto result = check_memory(operation); result != ncclSuccess) return result;
  find_registrations(operation);
  if (group().depth > 0) {
    group().operations.push_back(std::move(operation));
    return ncclSuccess;
  }
  return run({std::move(operation)});
}

}  // namespace

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, std::size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
                           cudaStream_t stream) {
  static auto& api = Api::named("ncclAllGather");
  return enqueue(api, {OperationKind::all_gather, sendbuff, recvbuff, sendcount, datatype, ncclSum, 0, {}, stream}, comm);
}
ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, std::size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  static auto& api = Api::named("ncclReduceScatter");
  return enqueue(api, {OperationKind::reduce_scatter, sendbuff, recvbuff, recvcount, datatype, op, 0, {}, stream}, comm);
}
ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, std::size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  static auto& api = Api::named("ncclAllReduce");
  return enqueue(api, {OperationKind::all_reduce, sendbuff, recvbuff, count, datatype, op, 0, {}, stream}, comm);
}
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, std::size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  static auto& api = Api::named("ncclBroadcast");
  return enqueue(api, {OperationKind::broadcast, sendbuff, recvbuff, count, datatype, ncclSum, root, {}, stream}, comm);
}
ncclResult_t ncclSend(const void* sendbuff, std::size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream) {
  static auto& api = Api::named("ncclSend");
  return enqueue(api, {OperationKind::send, sendbuff, nullptr, count, datatype, ncclSum, peer, {}, stream}, comm);
}
ncclResult_t ncclRecv(void* recvbuff, std::size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream) {
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
