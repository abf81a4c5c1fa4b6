// SPDX-License-Identifier: Apache-2.0
#include "mpi_transfer.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "mica/core/error.hpp"
#include "mica/mpi/communicator.hpp"

namespace mica::detail {
namespace {

constexpr int kTag = 1;
/// Who can be aborted asks so often at once, then with pauses.
constexpr int kEagerTries = 1000;
constexpr std::chrono::microseconds kPause{50};

std::byte* at(void* data, std::int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }
const std::byte* at(const void* data, std::int64_t bytes) { return static_cast<const std::byte*>(data) + bytes; }

int count(std::int64_t bytes) {
  invariant(bytes >= 0 && bytes <= 0x7fffffff, "an MPI call moves at most 2 GiB - 1");
  return static_cast<int>(bytes);
}

struct TypeTraits {
  using type = MPI_Datatype;
  static type null() { return MPI_DATATYPE_NULL; }
  static void close(type datatype) noexcept { MPI_Type_free(&datatype); }
};
using Datatype = UniqueHandle<TypeTraits>;

/// `bytes` bytes that repeat every `stride` bytes: lets one collective send or fill blocks that lie apart.
Datatype strided_block(std::int64_t bytes, std::int64_t stride) {
  Datatype block;
  Datatype strided;
  mpi::check(MPI_Type_contiguous(count(bytes), MPI_BYTE, block.put()), "MPI_Type_contiguous");
  mpi::check(MPI_Type_create_resized(block.get(), 0, static_cast<MPI_Aint>(stride), strided.put()), "MPI_Type_create_resized");
  MPI_Datatype handle = strided.get();
  mpi::check(MPI_Type_commit(&handle), "MPI_Type_commit");
  return strided;
}

/// Counts and displacements as the v variants want them, relative to the first slice.
struct IntSlices {
  std::vector<int> counts, offsets;
  explicit IntSlices(const Slices& slices) {
    for (std::size_t r = 0; r < slices.bytes.size(); ++r) {
      counts.push_back(count(slices.bytes[r]));
      offsets.push_back(count(slices.offset[r] - slices.offset.front()));
    }
  }
};

struct Partners {
  int send_to;
  int receive_from;
};
/// Round k of num_ranks - 1: every rank sends to another one than all the others do.
Partners partners(const Peers& peers, int k) {
  return {(peers.rank + k) % peers.num_ranks, (peers.rank - k + peers.num_ranks) % peers.num_ranks};
}

/// Messages that are under way. What has not come when this ends, since something has failed, is no longer waited for:
/// nothing is written into a buffer that its owner has back.
class Requests {
 public:
  explicit Requests(int num_ranks) { requests_.reserve(2 * static_cast<std::size_t>(num_ranks)); }
  ~Requests() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (i >= num_receives_) {
        MPI_Request_free(&requests_[i]);
        continue;
      }
      MPI_Cancel(&requests_[i]);
      MPI_Wait(&requests_[i], MPI_STATUS_IGNORE);  // cancelled, or begun by its sender, who has to end it
    }
  }
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  /// Before the first send().
  void receive(void* data, std::int64_t bytes, int from, MPI_Comm comm) {
    mpi::check(MPI_Irecv(data, count(bytes), MPI_BYTE, from, kTag, comm, &requests_.emplace_back(MPI_REQUEST_NULL)), "MPI_Irecv");
    ++num_receives_;
  }
  void send(const void* data, std::int64_t bytes, int to, MPI_Comm comm) {
    mpi::check(MPI_Isend(data, count(bytes), MPI_BYTE, to, kTag, comm, &requests_.emplace_back(MPI_REQUEST_NULL)), "MPI_Isend");
  }
  /// One after another: MPI_Waitall of Open MPI 4.1 never returns when a message failed before it was called.
  /// @param is_aborted  null: nobody ends the waiting.
  /// @throws MpiError with the cause of the first message that failed; Error once *is_aborted is set.
  void wait_for_all(const std::atomic<bool>* is_aborted) {
    int tries = 0;
    for (MPI_Request& request : requests_) {
      if (!is_aborted) {
        mpi::check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
        continue;
      }
      for (int is_done = 0;;) {
        mpi::check(MPI_Test(&request, &is_done, MPI_STATUS_IGNORE), "MPI_Test");
        if (is_done != 0) break;
        require(!*is_aborted, "nobody waits any more");
        if (++tries > kEagerTries) std::this_thread::sleep_for(kPause);
      }
    }
  }

 private:
  std::vector<MPI_Request> requests_;  // receives, then sends
  std::size_t num_receives_ = 0;
};

/// Point to point with everybody. @param receive(r), send(r)  where what comes from r goes, what goes to r lies.
template <class Receive, class Send>
void direct(const Peers& peers, const Slices& slices, bool sends_own_slice, const Receive& receive, const Send& send) {
  Requests requests(peers.num_ranks);
  const auto own = static_cast<std::size_t>(peers.rank);
  for (int k = 1; k < peers.num_ranks; ++k) {
    const int from = partners(peers, k).receive_from;
    const std::int64_t bytes = slices.bytes[sends_own_slice ? static_cast<std::size_t>(from) : own];
    if (bytes == 0) continue;
    requests.receive(receive(from), bytes, from, peers.comm);
  }
  for (int k = 1; k < peers.num_ranks; ++k) {
    const int to = partners(peers, k).send_to;
    const std::int64_t bytes = slices.bytes[sends_own_slice ? own : static_cast<std::size_t>(to)];
    if (bytes == 0) continue;
    requests.send(send(to), bytes, to, peers.comm);
  }
  requests.wait_for_all(peers.is_aborted);
}

}  // namespace

Slices Slices::regular(int num_ranks, std::int64_t begin, std::int64_t stride, std::int64_t bytes) {
  Slices slices;
  slices.is_regular = true;
  for (int r = 0; r < num_ranks; ++r) {
    slices.offset.push_back(begin + r * stride);
    slices.bytes.push_back(bytes);
  }
  return slices;
}

Slices Slices::even(int num_ranks, std::int64_t begin, std::int64_t numel, std::int64_t element_bytes) {
  Slices slices;
  for (int r = 0; r < num_ranks; ++r) {
    const std::int64_t first = numel * r / num_ranks;
    slices.offset.push_back((begin + first) * element_bytes);
    slices.bytes.push_back((numel * (r + 1) / num_ranks - first) * element_bytes);
  }
  return slices;
}

std::int64_t Slices::longest() const { return *std::max_element(bytes.begin(), bytes.end()); }

void gather_slices(const Peers& peers, void* buffer, const Slices& slices) {
  const auto own = static_cast<std::size_t>(peers.rank);
  if (peers.uses_point_to_point(slices.longest())) {
    direct(
        peers, slices, /*sends_own_slice=*/true, [&](int r) { return at(buffer, slices.offset[static_cast<std::size_t>(r)]); },
        [&](int) { return at(buffer, slices.offset[own]); });
    return;
  }
  void* base = at(buffer, slices.offset.front());
  if (!slices.is_regular) {
    const IntSlices ints(slices);
    mpi::check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, base, ints.counts.data(), ints.offsets.data(), MPI_BYTE, peers.comm),
               "MPI_Allgatherv");
    return;
  }
  const std::int64_t stride = slices.offset[1] - slices.offset[0];
  if (stride == slices.bytes.front()) {
    mpi::check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, base, count(stride), MPI_BYTE, peers.comm), "MPI_Allgather");
    return;
  }
  const Datatype block = strided_block(slices.bytes.front(), stride);
  mpi::check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, base, 1, block.get(), peers.comm), "MPI_Allgather");
}

std::vector<const void*> exchange_slices(const Peers& peers, const void* buffer, const Slices& slices, void* staging) {
  const auto n = static_cast<std::size_t>(peers.num_ranks);
  const auto own = static_cast<std::size_t>(peers.rank);
  const std::int64_t own_bytes = slices.bytes[own];
  std::vector<const void*> sources(n);
  for (std::size_t r = 0; r < n; ++r) sources[r] = at(staging, static_cast<std::int64_t>(r) * own_bytes);
  if (peers.uses_point_to_point(slices.longest())) {
    sources[own] = at(buffer, slices.offset[own]);
    direct(
        peers, slices, /*sends_own_slice=*/false, [&](int r) { return at(staging, r * own_bytes); },
        [&](int r) { return at(buffer, slices.offset[static_cast<std::size_t>(r)]); });
    return sources;
  }
  const void* base = at(buffer, slices.offset.front());
  if (!slices.is_regular) {
    const IntSlices sent(slices);
    const IntSlices received(Slices::regular(peers.num_ranks, 0, own_bytes, own_bytes));
    mpi::check(MPI_Alltoallv(base, sent.counts.data(), sent.offsets.data(), MPI_BYTE, staging, received.counts.data(),
                             received.offsets.data(), MPI_BYTE, peers.comm),
               "MPI_Alltoallv");
    return sources;
  }
  const std::int64_t stride = slices.offset[1] - slices.offset[0];
  if (stride == own_bytes) {
    mpi::check(MPI_Alltoall(base, count(own_bytes), MPI_BYTE, staging, count(own_bytes), MPI_BYTE, peers.comm), "MPI_Alltoall");
    return sources;
  }
  const Datatype block = strided_block(own_bytes, stride);
  mpi::check(MPI_Alltoall(base, 1, block.get(), staging, count(own_bytes), MPI_BYTE, peers.comm), "MPI_Alltoall");
  return sources;
}

void swap_slices(const Peers& peers, const void* sent, void* received, const Slices& slices) {
  const auto place = [&](int r) { return slices.offset[static_cast<std::size_t>(r)]; };
  // MPI_Alltoallw takes displacements in bytes, as ints.
  const bool reaches = slices.offset.back() - slices.offset.front() <= std::numeric_limits<int>::max();
  if (peers.uses_point_to_point(slices.longest()) || !reaches) {
    std::memcpy(at(received, place(peers.rank)), at(sent, place(peers.rank)),
                static_cast<std::size_t>(slices.bytes[static_cast<std::size_t>(peers.rank)]));
    direct(
        peers, slices, /*sends_own_slice=*/false, [&](int r) { return at(received, place(r)); }, [&](int r) { return at(sent, place(r)); });
    return;
  }
  const IntSlices ints(slices);
  const std::vector<MPI_Datatype> bytes(slices.bytes.size(), MPI_BYTE);
  mpi::check(MPI_Alltoallw(at(sent, slices.offset.front()), ints.counts.data(), ints.offsets.data(), bytes.data(),
                           at(received, slices.offset.front()), ints.counts.data(), ints.offsets.data(), bytes.data(), peers.comm),
             "MPI_Alltoallw");
}

void broadcast_bytes(const Peers& peers, void* data, std::int64_t bytes, int root) {
  if (!peers.is_aborted) {
    mpi::check(MPI_Bcast(data, count(bytes), MPI_BYTE, root, peers.comm), "MPI_Bcast");
    return;
  }
  Requests requests(peers.num_ranks);
  if (peers.rank != root) requests.receive(data, bytes, root, peers.comm);
  for (int k = 1; peers.rank == root && k < peers.num_ranks; ++k) {
    requests.send(data, bytes, partners(peers, k).send_to, peers.comm);
  }
  requests.wait_for_all(peers.is_aborted);
}

void wait_for_peers(const Peers& peers) {
  if (!peers.is_aborted) {
    mpi::check(MPI_Barrier(peers.comm), "MPI_Barrier");
    return;
  }
  std::vector<std::byte> here(static_cast<std::size_t>(peers.num_ranks));
  gather_slices(peers, here.data(), Slices::regular(peers.num_ranks, 0, 1, 1));
}

void gather_small(const Peers& peers, const void* mine, std::int64_t bytes, void* all) {
  if (peers.is_aborted) {
    std::memcpy(at(all, peers.rank * bytes), mine, static_cast<std::size_t>(bytes));
    gather_slices(peers, all, Slices::regular(peers.num_ranks, 0, bytes, bytes));
    return;
  }
  const IntSlices slices(Slices::regular(peers.num_ranks, 0, bytes, bytes));
  mpi::check(MPI_Allgatherv(mine, count(bytes), MPI_BYTE, all, slices.counts.data(), slices.offsets.data(), MPI_BYTE, peers.comm),
             "MPI_Allgatherv");
}

}  // namespace mica::detail
