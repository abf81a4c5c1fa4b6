// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <source_location>
#include <string>

#include <nccl.h>

#include "mica/comm/process_group.hpp"

namespace mica::nccl {

/// @throws NcclError "ncclAllGather: unhandled cuda error (ncclUnhandledCudaError): <what NCCL says last> at nccl_group.cpp:12"
void check(ncclResult_t result, const char* what, std::source_location where = std::source_location::current());

/// A non-blocking communicator: every NCCL call returns at once and is polled until it is done or has exceeded the timeout. Used by
/// the host thread; abort() and asynchronous_error() may be called on any thread. A mutex guards NCCL's handle, which an abort frees.
class Communicator {
 public:
  /// @param host  the same ranks for host memory: broadcasts the unique id from its rank 0.
  /// @collective over them  @throws NcclError naming group, ranks and cause, when the communicator is not ready within `timeout`
  Communicator(ProcessGroup& host, std::chrono::milliseconds timeout);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  using Call = std::function<ncclResult_t(ncclComm_t)>;
  /// Makes a call and waits until NCCL has enqueued its work.
  void run(const Call& call, const char* what, std::source_location where = std::source_location::current()) {
    run_until(std::chrono::steady_clock::now() + timeout_, call, what, where);
  }
  /// Empty if there is none.
  [[nodiscard]] std::string asynchronous_error();
  /// Ends work in progress on the device; nothing can be enqueued afterwards.
  void abort() noexcept;

 private:
  void run_until(std::chrono::steady_clock::time_point deadline, const Call& call, const char* what, std::source_location where);

  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;  // under mutex_
  bool is_aborted_ = false;    // under mutex_
};

}  // namespace mica::nccl
