// SPDX-License-Identifier: Apache-2.0
#include "support/pmpi_counter.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <utility>

#include <mpi.h>

namespace {

using mica::testing::kNumMpiCalls;
using mica::testing::MpiCall;
using mica::testing::MpiMessage;

std::array<std::atomic<std::int64_t>, kNumMpiCalls> g_calls{};
std::atomic<int> g_fail_next{-1};
std::atomic<bool> g_meet_around_isend{false};

std::atomic<std::int64_t> g_largest{0};

std::mutex g_messages_mutex;
bool g_notes_messages = false;
std::vector<MpiMessage> g_messages;

std::int64_t bytes_of(std::int64_t elements, MPI_Datatype type) {
  int bytes = 0;  // without gaps
  PMPI_Type_size(type, &bytes);
  return elements * bytes;
}

int ranks_of(MPI_Comm comm) {
  int ranks = 0;
  PMPI_Comm_size(comm, &ranks);
  return ranks;
}

std::int64_t sum_of(const int* counts, MPI_Comm comm) { return std::accumulate(counts, counts + ranks_of(comm), std::int64_t{0}); }

/// Counts; true if this call shall fail.
bool count(MpiCall call, std::int64_t bytes = 0) {
  for (std::int64_t largest = g_largest; bytes > largest && !g_largest.compare_exchange_weak(largest, bytes);) {
  }
  const int index = static_cast<int>(call);
  ++g_calls[static_cast<std::size_t>(index)];
  int expected = index;
  return g_fail_next.compare_exchange_strong(expected, -1);
}

void note_message(const MpiMessage& message) {
  const std::lock_guard lock(g_messages_mutex);
  if (g_notes_messages) g_messages.push_back(message);
}

}  // namespace

namespace mica::testing {

MpiCallCounts mpi_calls() {
  MpiCallCounts counts;
  for (std::size_t i = 0; i < kNumMpiCalls; ++i) counts.calls[i] = g_calls[i].load();
  return counts;
}

std::int64_t take_largest_mpi_call() { return g_largest.exchange(0); }

std::vector<MpiMessage> messages_of(const std::function<void()>& work) {
  const auto note = [](bool on) {
    const std::lock_guard lock(g_messages_mutex);
    g_notes_messages = on;
  };
  note(true);
  work();
  note(false);
  return std::exchange(g_messages, {});
}

void fail_next(MpiCall call) { g_fail_next = static_cast<int>(call); }

void meet_around_next_isend() { g_meet_around_isend = true; }

}  // namespace mica::testing

extern "C" {

int MPI_Allgather(const void* send, int send_count, MPI_Datatype send_type, void* receive, int receive_count, MPI_Datatype receive_type,
                  MPI_Comm comm) {
  if (count(MpiCall::allgather, ranks_of(comm) * bytes_of(receive_count, receive_type))) return MPI_ERR_OTHER;
  return PMPI_Allgather(send, send_count, send_type, receive, receive_count, receive_type, comm);
}

int MPI_Allgatherv(const void* send, int send_count, MPI_Datatype send_type, void* receive, const int* counts, const int* offsets,
                   MPI_Datatype receive_type, MPI_Comm comm) {
  if (count(MpiCall::allgatherv, bytes_of(sum_of(counts, comm), receive_type))) return MPI_ERR_OTHER;
  return PMPI_Allgatherv(send, send_count, send_type, receive, counts, offsets, receive_type, comm);
}

int MPI_Alltoall(const void* send, int send_count, MPI_Datatype send_type, void* receive, int receive_count, MPI_Datatype receive_type,
                 MPI_Comm comm) {
  if (count(MpiCall::alltoall, ranks_of(comm) * bytes_of(receive_count, receive_type))) return MPI_ERR_OTHER;
  return PMPI_Alltoall(send, send_count, send_type, receive, receive_count, receive_type, comm);
}

int MPI_Alltoallv(const void* send, const int* send_counts, const int* send_offsets, MPI_Datatype send_type, void* receive,
                  const int* counts, const int* offsets, MPI_Datatype receive_type, MPI_Comm comm) {
  if (count(MpiCall::alltoallv, bytes_of(std::max(sum_of(send_counts, comm), sum_of(counts, comm)), receive_type))) return MPI_ERR_OTHER;
  return PMPI_Alltoallv(send, send_counts, send_offsets, send_type, receive, counts, offsets, receive_type, comm);
}

int MPI_Alltoallw(const void* send, const int* send_counts, const int* send_offsets, const MPI_Datatype* send_types, void* receive,
                  const int* counts, const int* offsets, const MPI_Datatype* receive_types, MPI_Comm comm) {
  if (count(MpiCall::alltoallw, bytes_of(std::max(sum_of(send_counts, comm), sum_of(counts, comm)), receive_types[0])))
    return MPI_ERR_OTHER;
  return PMPI_Alltoallw(send, send_counts, send_offsets, send_types, receive, counts, offsets, receive_types, comm);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* part) {
  if (count(MpiCall::split)) return MPI_ERR_OTHER;
  return PMPI_Comm_split(comm, color, key, part);
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* part) {
  if (count(MpiCall::split)) return MPI_ERR_OTHER;
  return PMPI_Comm_split_type(comm, type, key, info, part);
}

int MPI_Bcast(void* data, int data_count, MPI_Datatype type, int root, MPI_Comm comm) {
  if (count(MpiCall::bcast, bytes_of(data_count, type))) return MPI_ERR_OTHER;
  return PMPI_Bcast(data, data_count, type, root, comm);
}

int MPI_Barrier(MPI_Comm comm) {
  if (count(MpiCall::barrier)) return MPI_ERR_OTHER;
  return PMPI_Barrier(comm);
}

int MPI_Isend(const void* data, int data_count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  if (count(MpiCall::isend, bytes_of(data_count, type))) return MPI_ERR_OTHER;
  const bool meets = g_meet_around_isend.exchange(false);
  if (meets) PMPI_Barrier(MPI_COMM_WORLD);
  note_message({MpiCall::isend, data, bytes_of(data_count, type), to});
  const int rc = PMPI_Isend(data, data_count, type, to, tag, comm, request);
  if (meets) PMPI_Barrier(MPI_COMM_WORLD);
  return rc;
}

int MPI_Irecv(void* data, int data_count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  if (count(MpiCall::irecv, bytes_of(data_count, type))) return MPI_ERR_OTHER;
  note_message({MpiCall::irecv, data, bytes_of(data_count, type), from});
  return PMPI_Irecv(data, data_count, type, from, tag, comm, request);
}

int MPI_Allreduce(const void* send, void* receive, int data_count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  if (count(MpiCall::allreduce, bytes_of(data_count, type))) return MPI_ERR_OTHER;
  return PMPI_Allreduce(send, receive, data_count, type, op, comm);
}

int MPI_Group_translate_ranks(MPI_Group from, int num, const int* ranks, MPI_Group to, int* translated) {
  if (count(MpiCall::translate_ranks)) return MPI_ERR_OTHER;
  return PMPI_Group_translate_ranks(from, num, ranks, to, translated);
}

}  // extern "C"
