// SPDX-License-Identifier: Apache-2.0
#include "nccl_operation.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "mica/core/half.hpp"

#include "memory.hpp"
#include "nccl_comm.hpp"

namespace mica::cuda_emulation {

namespace {

std::size_t type_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

/// The type that an element is added up in.
template <class T>
struct Wide {
  using type = T;
};
template <>
struct Wide<bf16> {
  using type = float;
};
template <>
struct Wide<f16> {
  using type = float;
};

template <class T>
T combine(T a, T b, ncclRedOp_t op) {
  using W = typename Wide<T>::type;
  const W x = static_cast<W>(a), y = static_cast<W>(b);
  switch (op) {
    case ncclProd:
      return T(static_cast<W>(x * y));
    case ncclMax:
      return T(std::max(x, y));
    case ncclMin:
      return T(std::min(x, y));
    default:
      return T(static_cast<W>(x + y));
  }
}

/// out[count] from element `at` of every rank's `send` on. Floating averages are sums of what each rank divided.
template <class T>
void reduce(const std::vector<Operation>& ranks, std::size_t at, std::size_t count, T* out) {
  using W = typename Wide<T>::type;
  const auto op = ranks[0].reduction;
  const W parts = static_cast<W>(ranks.size());
  constexpr bool kIsInteger = std::is_integral_v<W>;
  const bool divides = op == ncclAvg && !kIsInteger;
  const auto brought = [&](std::size_t rank, std::size_t i) {
    const T value = static_cast<const T*>(ranks[rank].send)[at + i];
    return divides ? T(static_cast<W>(static_cast<W>(value) / parts)) : value;
  };
  for (std::size_t i = 0; i < count; ++i) {
    T sum = brought(0, i);
    for (std::size_t rank = 1; rank < ranks.size(); ++rank) sum = combine(sum, brought(rank, i), op);
    if (op == ncclAvg && kIsInteger) sum = T(static_cast<W>(static_cast<W>(sum) / parts));
    out[i] = sum;
  }
}

void reduce_bytes(const std::vector<Operation>& ranks, std::size_t at, std::size_t count, void* out) {
  switch (ranks[0].type) {
    case ncclInt8:
      return reduce(ranks, at, count, static_cast<std::int8_t*>(out));
    case ncclUint8:
      return reduce(ranks, at, count, static_cast<std::uint8_t*>(out));
    case ncclInt32:
      return reduce(ranks, at, count, static_cast<std::int32_t*>(out));
    case ncclUint32:
      return reduce(ranks, at, count, static_cast<std::uint32_t*>(out));
    case ncclInt64:
      return reduce(ranks, at, count, static_cast<std::int64_t*>(out));
    case ncclUint64:
      return reduce(ranks, at, count, static_cast<std::uint64_t*>(out));
    case ncclFloat16:
      return reduce(ranks, at, count, static_cast<f16*>(out));
    case ncclFloat32:
      return reduce(ranks, at, count, static_cast<float*>(out));
    case ncclFloat64:
      return reduce(ranks, at, count, static_cast<double*>(out));
    case ncclBfloat16:
      return reduce(ranks, at, count, static_cast<bf16*>(out));
    default:
      break;
  }
}

}  // namespace

std::size_t Operation::bytes() const { return count * type_bytes(type); }
std::size_t Operation::send_bytes() const {
  if (kind == OperationKind::reduce_scatter) return bytes() * static_cast<std::size_t>(comm->num_ranks);
  if (kind == OperationKind::broadcast) return comm->rank == root ? bytes() : 0;
  return kind == OperationKind::receive ? 0 : bytes();
}
std::size_t Operation::receive_bytes() const {
  if (kind == OperationKind::all_gather) return bytes() * static_cast<std::size_t>(comm->num_ranks);
  return kind == OperationKind::send ? 0 : bytes();
}

const char* name(OperationKind kind) {
  switch (kind) {
    case OperationKind::all_gather:
      return "ncclAllGather";
    case OperationKind::reduce_scatter:
      return "ncclReduceScatter";
    case OperationKind::all_reduce:
      return "ncclAllReduce";
    case OperationKind::broadcast:
      return "ncclBroadcast";
    case OperationKind::send:
      return "ncclSend";
    case OperationKind::receive:
      return "ncclRecv";
  }
  return "";
}

void execute(const std::vector<Operation>& ranks) {
  const Operation& first = ranks[0];
  const std::size_t bytes = first.bytes();
  if (bytes == 0) return;
  const DeviceWork work;
  // All inputs are read before an output is written: they may be the same memory.
  std::vector<char> result;
  switch (first.kind) {
    case OperationKind::all_gather:
      for (const auto& it : ranks) {
        const auto* begin = static_cast<const char*>(it.send);
        result.insert(result.end(), begin, begin + bytes);
      }
      for (const auto& it : ranks) std::memcpy(it.receive, result.data(), result.size());
      break;
    case OperationKind::all_reduce:
      result.resize(bytes);
      reduce_bytes(ranks, 0, first.count, result.data());
      for (const auto& it : ranks) std::memcpy(it.receive, result.data(), bytes);
      break;
    case OperationKind::reduce_scatter:
      result.resize(bytes * ranks.size());
      reduce_bytes(ranks, 0, first.count * ranks.size(), result.data());
      for (std::size_t r = 0; r < ranks.size(); ++r) std::memcpy(ranks[r].receive, result.data() + r * bytes, bytes);
      break;
    case OperationKind::broadcast:
      for (const auto& it : ranks) std::memmove(it.receive, ranks[static_cast<std::size_t>(it.root)].send, bytes);
      break;
    case OperationKind::send:
    case OperationKind::receive:
      std::memmove(ranks[1].receive, ranks[0].send, bytes);
      break;
  }
}

}  // namespace mica::cuda_emulation
