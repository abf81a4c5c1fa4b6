// SPDX-License-Identifier: Apache-2.0
#include "nccl_comm.hpp"

#include <cstdlib>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "mica/comm/host_comm.hpp"
#include "mica/core/error.hpp"

namespace mica::nccl {
namespace {

using Clock = std::chrono::steady_clock;

ncclUniqueId agree_on_id(ProcessGroup& host, std::chrono::milliseconds timeout) {
  ncclUniqueId id{};
  if (host.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  broadcast_within(host, std::as_writable_bytes(std::span(id.internal)), 0, timeout);
  return id;
}

}  // namespace

void check(ncclResult_t result, const char* what, std::source_location where) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const std::string_view path = where.file_name();
  const char* last = ncclGetLastError(nullptr);
  throw NcclError(fmt::format("{}: {}{}{} at {}:{}", what, ncclGetErrorString(result), last && *last ? ": " : "", last ? last : "",
                              path.substr(path.rfind('/') + 1), where.line()));
}

Communicator::Communicator(ProcessGroup& host, std::chrono::milliseconds timeout) : timeout_(timeout) {
  // Several communicators share a GPU: makes NCCL launch in the host's order, which is the same on all ranks.
  static_cast<void>(setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0));
  const auto deadline = Clock::now() + timeout;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  try {
    const ncclUniqueId id = agree_on_id(host, timeout);
    run_until(
        deadline, [&](ncclComm_t) { return ncclCommInitRankConfig(&comm_, host.num_ranks(), id, host.rank(), &config); },
        "ncclCommInitRankConfig", std::source_location::current());
  } catch (const Error& e) {
    abort();
    throw NcclError(
        fmt::format("group '{}' (rank {} of {}): no NCCL communicator: {}", host.name(), host.rank(), host.num_ranks(), e.what()));
  }
}

Communicator::~Communicator() {
  try {
    run(ncclCommFinalize, "ncclCommFinalize");
    static_cast<void>(ncclCommDestroy(comm_));
  } catch (const NcclError&) {  // aborted, or the others are gone
    abort();
  }
}

void Communicator::run_until(Clock::time_point deadline, const Call& call, const char* what, std::source_location where) {
  ncclResult_t state = ncclInProgress;
  for (bool is_called = false; state == ncclInProgress; is_called = true) {
    {
      const std::lock_guard lock(mutex_);
      require<NcclError>(!is_aborted_, "{}: the communicator was aborted", what);
      if (is_called) {
        check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", where);
      } else {
        state = call(comm_);
      }
      check(state, what, where);
    }
    if (state != ncclInProgress) return;
    require<NcclError>(Clock::now() < deadline, "{}: not done within {} s (mesh.timeout); is a rank missing, or the network closed?", what,
                       std::chrono::duration_cast<std::chrono::seconds>(timeout_).count());
    std::this_thread::yield();
  }
}

std::string Communicator::asynchronous_error() {
  const std::lock_guard lock(mutex_);
  if (is_aborted_) return {};
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) state = asked;
  if (state == ncclSuccess || state == ncclInProgress) return {};
  const char* last = ncclGetLastError(comm_);
  return fmt::format("{}{}{}", ncclGetErrorString(state), last && *last ? ": " : "", last ? last : "");
}

void Communicator::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(is_aborted_, true) && comm_ != nullptr) static_cast<void>(ncclCommAbort(comm_));
}

}  // namespace mica::nccl
