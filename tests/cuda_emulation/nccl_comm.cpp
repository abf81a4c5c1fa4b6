// SPDX-License-Identifier: Apache-2.0
#include "nccl_comm.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "cuda_emulation.hpp"

namespace mica::cuda_emulation {

namespace {

constexpr auto kDeadline = std::chrono::seconds(60);

/// What tests ordered.
struct Orders {
  std::mutex mutex;
  std::map<int, ncclResult_t> broken;  ///< rank -> ncclSuccess: its next operation hangs; or the error it fails with
  std::optional<std::chrono::milliseconds> patience;
  bool shares_devices = false;
};

Orders& orders() {
  static Orders all;
  return all;
}

std::optional<ncclResult_t> take_order(int rank) {
  const std::lock_guard lock(orders().mutex);
  const auto it = orders().broken.find(rank);
  if (it == orders().broken.end()) return {};
  const auto order = it->second;
  orders().broken.erase(it);
  return order;
}

std::atomic<std::int64_t> num_registered_operations = 0;

bool is_point_to_point(const Operation& it) { return it.kind == OperationKind::send || it.kind == OperationKind::receive; }

/// NCCL leaves it undefined what becomes of ranks that differ in this.
bool registered_alike(const Operation& a, const Operation& b) {
  return a.send_registered == b.send_registered && a.receive_registered == b.receive_registered && a.registered_at == b.registered_at;
}

[[noreturn]] void refuse(const Operation& a, const Operation& b) {
  const auto print = [](const Operation& it) {
    std::fprintf(stderr, "  rank %d of %d: %s of %zu elements of type %d, operation %d, root or peer %d\n", it.comm->rank,
                 it.comm->num_ranks, name(it.kind), it.count, it.type, it.reduction, it.root);
  };
  std::fprintf(stderr, "CUDA emulation: ranks of one NCCL communicator ask for different things\n");
  print(a);
  print(b);
  std::abort();
}

}  // namespace

void count_registered_operation() { ++num_registered_operations; }
std::int64_t registered_operations() { return num_registered_operations; }

void share_devices_between_nccl_ranks(bool allowed) {
  const std::lock_guard lock(orders().mutex);
  orders().shares_devices = allowed;
}
void hang_next_nccl_operation(int rank) {
  const std::lock_guard lock(orders().mutex);
  orders().broken[rank] = ncclSuccess;
}
void fail_next_nccl_operation(int rank, int error) {
  const std::lock_guard lock(orders().mutex);
  orders().broken[rank] = static_cast<ncclResult_t>(error);
}
void set_nccl_patience(std::chrono::milliseconds patience) {
  const std::lock_guard lock(orders().mutex);
  if (patience.count() > 0) {
    orders().patience = patience;
  } else {
    orders().patience.reset();
  }
}

ncclResult_t Clique::join(const std::shared_ptr<ncclComm>& comm) {
  const std::lock_guard lock(mutex_);
  if (comm->num_ranks != static_cast<int>(members_.size())) {
    return nccl_failed(ncclInvalidArgument, "ranks of one unique id name different numbers of ranks");
  }
  auto& place = members_[static_cast<std::size_t>(comm->rank)];
  if (place != nullptr) return nccl_failed(ncclInvalidUsage, "two ranks of one unique id have the same number");
  place = comm;
  if (++joined_ == comm->num_ranks) {
    state_ = ncclSuccess;
    const std::lock_guard orders_lock(orders().mutex);
    std::map<int, int> rank_of_device;
    for (const auto& member : members_) {
      const auto [it, is_new] = rank_of_device.try_emplace(member->device, member->rank);
      if (is_new || orders().shares_devices) continue;
      state_ = nccl_failed(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(it->second) + " and rank " +
                                                 std::to_string(member->rank) + " both on CUDA device " + std::to_string(member->device));
    }
  }
  changed_.notify_all();
  return ncclSuccess;
}

ncclResult_t Clique::state() {
  const std::lock_guard lock(mutex_);
  return state_;
}

void Clique::wait_for_all() {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, kDeadline, [&] { return state_ != ncclInProgress; })) return;
  std::fprintf(stderr, "CUDA emulation: only %d of %zu ranks came to ncclCommInitRank within 60 s\n", joined_, members_.size());
  std::abort();
}

std::shared_ptr<Meeting> Clique::post(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  const auto meeting = meeting_of(operation);
  if (const auto order = take_order(operation.comm->rank)) {
    meeting->never = true;
    if (*order != ncclSuccess) operation.comm->error = *order;
  }
  arrive(operation, *meeting);
  return meeting;
}

std::shared_ptr<Meeting> Clique::meeting_of(const Operation& operation) {
  if (is_point_to_point(operation)) {
    const bool is_send = operation.kind == OperationKind::send;
    const int rank = operation.comm->rank;
    const auto way = is_send ? std::pair(rank, operation.root) : std::pair(operation.root, rank);
    auto& others = (is_send ? receives_ : sends_)[way];
    if (!others.empty()) {
      auto meeting = others.front();
      others.pop_front();
      return meeting;
    }
    auto meeting = std::make_shared<Meeting>();
    meeting->operations.resize(2);
    (is_send ? sends_ : receives_)[way].push_back(meeting);
    return meeting;
  }
  const std::uint64_t at = operation.comm->num_collectives++ - first_collective_;
  if (at == collectives_.size()) {
    collectives_.push_back(std::make_shared<Meeting>());
    collectives_.back()->operations.resize(members_.size());
  }
  return collectives_[at];
}

void Clique::arrive(const Operation& operation, Meeting& meeting) {
  for (const auto& other : meeting.operations) {
    if (other.comm == nullptr) continue;
    const bool fits = is_point_to_point(operation)
                          ? other.bytes() == operation.bytes()
                          : other.kind == operation.kind && other.count == operation.count && other.type == operation.type &&
                                other.reduction == operation.reduction && other.root == operation.root;
    if (!fits) refuse(other, operation);
    if (!is_point_to_point(operation) && !registered_alike(other, operation)) {
      std::fprintf(stderr, "CUDA emulation: buffers of ranks are registered unlike: %s at %td of rank %d, at %td of rank %d\n",
                   name(operation.kind), other.registered_at, other.comm->rank, operation.registered_at, operation.comm->rank);
      std::abort();
    }
  }
  const std::size_t place =
      is_point_to_point(operation) ? (operation.kind == OperationKind::receive ? 1 : 0) : static_cast<std::size_t>(operation.comm->rank);
  meeting.operations[place] = operation;
  if (++meeting.arrived < meeting.operations.size()) return;
  if (!meeting.never) {
    execute(meeting.operations);
    meeting.done = true;
  }
  while (!collectives_.empty() && collectives_.front()->arrived == members_.size()) {
    collectives_.pop_front();
    ++first_collective_;
  }
}

Progress Clique::progress_of(const Operation& operation, Meeting& meeting, std::chrono::steady_clock::time_point begin) {
  const std::lock_guard lock(mutex_);
  const ncclComm& comm = *operation.comm;
  if (meeting.done || comm.is_aborted) return Progress::done;
  std::optional<std::chrono::milliseconds> patience;
  {
    const std::lock_guard orders_lock(orders().mutex);
    patience = orders().patience;
  }
  if (!meeting.never && std::chrono::steady_clock::now() - begin > patience.value_or(kDeadline)) {
    if (!patience) {
      std::fprintf(stderr, "CUDA emulation: rank %d of %d waited 60 s in %s; %zu of %zu ranks have come\n", comm.rank, comm.num_ranks,
                   name(operation.kind), meeting.arrived, meeting.operations.size());
      std::abort();
    }
    meeting.never = true;
  }
  return meeting.never ? Progress::hangs : Progress::waits;
}

void Clique::abort(ncclComm& comm) {
  const std::lock_guard lock(mutex_);
  comm.is_aborted = true;
  const auto give_up = [&](const std::shared_ptr<Meeting>& meeting) {
    for (const auto& it : meeting->operations) {
      if (it.comm.get() == &comm && !meeting->done) meeting->never = true;
    }
  };
  std::ranges::for_each(collectives_, give_up);
  for (auto* waiting : {&sends_, &receives_}) {
    for (auto& [way, meetings] : *waiting) std::ranges::for_each(meetings, give_up);
  }
  members_[static_cast<std::size_t>(comm.rank)].reset();
  if (std::ranges::all_of(members_, [](const auto& it) { return it == nullptr; })) {  // they hold each other
    collectives_.clear();
    sends_.clear();
    receives_.clear();
  }
  changed_.notify_all();
}

}  // namespace mica::cuda_emulation
