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

/// A communicator, made and used without blocking: every call comes back at once and is polled until it is done or has
/// taken too long. Used by the host's thread; abort() and asynchronous_error() may come from any, and NCCL's handle, which
/// an abort frees, is touched by one thread at a time.
class Communicator {
 public:
  /// @param host  the same ranks on the host: carries the unique id from its rank 0.
  /// @collective over them  @throws NcclError naming group, ranks and cause, when it is not there within `timeout`
  Communicator(ProcessGroup& host, std::chrono::milliseconds timeout);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  using Call = std::function<ncclResult_t(ncclComm_t)>;
  /// Makes a call and waits until NCCL has enqueued what it was asked for.
  void run(const Call& call, const char* what, std::source_location where = std::source_location::current()) {
    run_until(std::chrono::steady_clock::now() + timeout_, call, what, where);
  }
  /// Empty while all is well.
  [[nodiscard]] std::string asynchronous_error();
  /// Ends what is under way on the device; nothing can be enqueued any more.
  void abort() noexcept;

 private:
  void run_until(std::chrono::steady_clock::time_point deadline, const Call& call, const char* what, std::source_location where);

  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;  // under mutex_
  bool is_aborted_ = false;    // under mutex_
};

}  // namespace mica::nccl
