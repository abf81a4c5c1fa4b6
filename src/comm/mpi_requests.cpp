// SPDX-License-Identifier: Apache-2.0
#include "mpi_requests.hpp"

#include <chrono>
#include <thread>

#include "mica/core/error.hpp"
#include "mica/mpi/communicator.hpp"

namespace mica::detail {
namespace {

constexpr int kTag = 1;
/// If the group can be aborted, wait_for_all() calls MPI_Test this often without pauses.
constexpr int kEagerTries = 1000;
constexpr std::chrono::microseconds kPause{50};

}  // namespace

int mpi_count(std::int64_t bytes) {
  invariant(bytes >= 0 && bytes <= 0x7fffffff, "an MPI call moves at most 2 GiB - 1");
  return static_cast<int>(bytes);
}

Requests::Requests(const Peers& peers) : peers_(peers) { requests_.reserve(2 * static_cast<std::size_t>(peers.num_ranks)); }

Requests::~Requests() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (i >= num_receives_) {
      MPI_Request_free(&requests_[i]);
      continue;
    }
    MPI_Cancel(&requests_[i]);
    MPI_Wait(&requests_[i], MPI_STATUS_IGNORE);  // it was cancelled, or its sender has begun and will finish it
  }
}

void Requests::receive(void* data, std::int64_t bytes, int from) {
  if (bytes == 0) return;
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  mpi::check(MPI_Irecv(data, mpi_count(bytes), MPI_BYTE, from, kTag, peers_.comm, &request), "MPI_Irecv");
  ++num_receives_;
}

void Requests::send(const void* data, std::int64_t bytes, int to) {
  if (bytes == 0) return;
  MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
  mpi::check(MPI_Isend(data, mpi_count(bytes), MPI_BYTE, to, kTag, peers_.comm, &request), "MPI_Isend");
  if (peers_.nodes.node_of(to) != peers_.nodes.node_of(peers_.rank)) peers_.bytes_to_other_nodes += bytes;
}

void Requests::wait_for_all() {
  int tries = 0;
  for (MPI_Request& request : requests_) {
    if (!peers_.is_aborted) {
      mpi::check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
      continue;
    }
    for (int is_done = 0;;) {
      mpi::check(MPI_Test(&request, &is_done, MPI_STATUS_IGNORE), "MPI_Test");
      if (is_done != 0) break;
      require(!*peers_.is_aborted, "the wait was aborted");
      if (++tries > kEagerTries) std::this_thread::sleep_for(kPause);
    }
  }
}

}  // namespace mica::detail
