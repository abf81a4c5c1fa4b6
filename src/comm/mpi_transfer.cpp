// SPDX-License-Identifier: Apache-2.0
#include "mpi_transfer.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "mica/core/error.hpp"
#include "mica/mpi/communicator.hpp"
#include "mica/tensor/host_math.hpp"

#include "mpi_requests.hpp"

namespace mica::detail {
namespace {

struct TypeTraits {
  using type = MPI_Datatype;
  static type null() { return MPI_DATATYPE_NULL; }
  static void close(type datatype) noexcept { MPI_Type_free(&datatype); }
};
using Datatype = UniqueHandle<TypeTraits>;

/// `bytes` bytes that repeat every `stride` bytes: lets one collective send or receive blocks with gaps between them.
Datatype strided_block(std::int64_t bytes, std::int64_t stride) {
  Datatype block;
  Datatype strided;
  mpi::check(MPI_Type_contiguous(mpi_count(bytes), MPI_BYTE, block.put()), "MPI_Type_contiguous");
  mpi::check(MPI_Type_create_resized(block.get(), 0, static_cast<MPI_Aint>(stride), strided.put()), "MPI_Type_create_resized");
  MPI_Datatype handle = strided.get();
  mpi::check(MPI_Type_commit(&handle), "MPI_Type_commit");
  return strided;
}

/// Counts and displacements for the v variants, relative to the first slice.
struct IntSlices {
  std::vector<int> counts, offsets;
  explicit IntSlices(const Slices& slices) {
    for (std::size_t r = 0; r < slices.bytes.size(); ++r) {
      counts.push_back(mpi_count(slices.bytes[r]));
      offsets.push_back(mpi_count(slices.offset[r] - slices.offset.front()));
    }
  }
};

struct Partners {
  int send_to;
  int receive_from;
};
/// In round k (of num_ranks - 1), all ranks send to different ranks.
Partners partners(const Peers& peers, int k) {
  return {(peers.rank + k) % peers.num_ranks, (peers.rank - k + peers.num_ranks) % peers.num_ranks};
}

/// Begins to send to and receive from all other ranks, point to point. @param receive(r)  where data from r goes
/// @param send(r)  where data for r is
template <class Receive, class Send>
void begin_direct(Requests& requests, const Peers& peers, const Slices& slices, bool sends_own_slice, const Receive& receive,
                  const Send& send) {
  const auto own = static_cast<std::size_t>(peers.rank);
  for (int k = 1; k < peers.num_ranks; ++k) {
    const int from = partners(peers, k).receive_from;
    requests.receive(receive(from), slices.bytes[sends_own_slice ? static_cast<std::size_t>(from) : own], from);
  }
  for (int k = 1; k < peers.num_ranks; ++k) {
    const int to = partners(peers, k).send_to;
    requests.send(send(to), slices.bytes[sends_own_slice ? own : static_cast<std::size_t>(to)], to);
  }
}

template <class Receive, class Send>
void direct(const Peers& peers, const Slices& slices, bool sends_own_slice, const Receive& receive, const Send& send) {
  Requests requests(peers);
  begin_direct(requests, peers, slices, sends_own_slice, receive, send);
  requests.wait_for_all();
}

/// Rank r sends slice k of its `buffer` to rank k.
class ReductionByRank final : public PendingReduction {
 public:
  ReductionByRank(const Peers& peers, const Summands& summands, const void* buffer, const Slices& slices, void* staging)
      : summands_(summands), own_bytes_(slices.bytes[static_cast<std::size_t>(peers.rank)]), messages_(peers) {
    const auto own = static_cast<std::size_t>(peers.rank);
    const auto received = [staging, this](int r) { return at(staging, r * own_bytes_); };
    for (int r = 0; r < peers.num_ranks; ++r) sources_.push_back(received(r));
    if (!peers.uses_point_to_point(slices.longest())) {
      exchange_at_once(peers, buffer, slices, staging);
      return;
    }
    sources_[own] = at(buffer, slices.offset[own]);
    begin_direct(messages_, peers, slices, /*sends_own_slice=*/false, received,
                 [&](int r) { return at(buffer, slices.offset[static_cast<std::size_t>(r)]); });
  }

  void finish(void* result) override {
    messages_.wait_for_all();
    fold(summands_.op, sources_, result, own_bytes_ / dtype_bytes(summands_.dtype), summands_.dtype);
  }

 private:
  /// By one MPI collective.
  void exchange_at_once(const Peers& peers, const void* buffer, const Slices& slices, void* staging) const {
    const void* base = at(buffer, slices.offset.front());
    if (!slices.is_regular) {
      const IntSlices sent(slices);
      const IntSlices received(Slices::regular(peers.num_ranks, 0, own_bytes_, own_bytes_));
      mpi::check(MPI_Alltoallv(base, sent.counts.data(), sent.offsets.data(), MPI_BYTE, staging, received.counts.data(),
                               received.offsets.data(), MPI_BYTE, peers.comm),
                 "MPI_Alltoallv");
      return;
    }
    const std::int64_t stride = slices.offset[1] - slices.offset[0];
    if (stride == own_bytes_) {
      mpi::check(MPI_Alltoall(base, mpi_count(own_bytes_), MPI_BYTE, staging, mpi_count(own_bytes_), MPI_BYTE, peers.comm), "MPI_Alltoall");
      return;
    }
    const Datatype block = strided_block(own_bytes_, stride);
    mpi::check(MPI_Alltoall(base, 1, block.get(), staging, mpi_count(own_bytes_), MPI_BYTE, peers.comm), "MPI_Alltoall");
  }

  Summands summands_;
  std::int64_t own_bytes_;
  std::vector<const void*> sources_;  // this rank's slice of every rank's buffer, in rank order
  Requests messages_;
};

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
    mpi::check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, base, mpi_count(stride), MPI_BYTE, peers.comm), "MPI_Allgather");
    return;
  }
  const Datatype block = strided_block(slices.bytes.front(), stride);
  mpi::check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, base, 1, block.get(), peers.comm), "MPI_Allgather");
}

std::unique_ptr<PendingReduction> begin_reduction(const Peers& peers, const Summands& summands, const void* buffer, const Slices& slices,
                                                  void* staging) {
  return std::make_unique<ReductionByRank>(peers, summands, buffer, slices, staging);
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
    mpi::check(MPI_Bcast(data, mpi_count(bytes), MPI_BYTE, root, peers.comm), "MPI_Bcast");
    return;
  }
  Requests requests(peers);
  if (peers.rank != root) requests.receive(data, bytes, root);
  for (int k = 1; peers.rank == root && k < peers.num_ranks; ++k) {
    requests.send(data, bytes, partners(peers, k).send_to);
  }
  requests.wait_for_all();
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
  mpi::check(MPI_Allgatherv(mine, mpi_count(bytes), MPI_BYTE, all, slices.counts.data(), slices.offsets.data(), MPI_BYTE, peers.comm),
             "MPI_Allgatherv");
}

void fold(ReduceOp op, const std::vector<const void*>& sources, void* dst, std::int64_t numel, DType dtype) {
  op == ReduceOp::sum ? fold_sum(sources, dst, numel, dtype) : fold_max(sources, dst, numel, dtype);
}

}  // namespace mica::detail
