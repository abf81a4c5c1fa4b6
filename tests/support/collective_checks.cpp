// SPDX-License-Identifier: Apache-2.0
#include "support/collective_checks.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "mica/core/half.hpp"

namespace mica::testing {
namespace {

constexpr std::size_t kGuard = 64;
constexpr unsigned char kPoison = 0xff;  // NaN in every dtype

}  // namespace

float value_of(int rank, std::int64_t i) {
  const bool cancels = i % 3 == 0 && (rank == 1 || rank == 2);
  std::uint64_t h =
      (static_cast<std::uint64_t>(cancels ? 1 : rank) + 1) * 0x9E3779B97F4A7C15ULL + static_cast<std::uint64_t>(i) * 0xD6E8FEB86659FD93ULL;
  h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93ULL;
  h ^= h >> 29;
  const auto exponent = static_cast<std::uint32_t>(i % 3 != 0 ? static_cast<int>((h >> 24) % 21) - 12 : cancels ? 8 : -12);
  const bool is_negative = cancels ? rank == 2 : (h >> 40) % 2 == 0;
  const auto fraction = static_cast<std::uint32_t>(h & 0x7fffff);
  return std::bit_cast<float>((is_negative ? 0x80000000U : 0U) | (126U + exponent) << 23 | fraction);  // [0.5, 1) * 2^exponent
}

float rounded(float value, DType dtype) {
  if (dtype == DType::bf16) return static_cast<float>(bf16(value));
  if (dtype == DType::f16) return static_cast<float>(f16(value));
  return value;
}

Data::Data(std::int64_t numel, DType dtype)
    : numel_(numel), dtype_(dtype), bytes_(static_cast<std::size_t>(numel * dtype_bytes(dtype)) + 2 * kGuard, kPoison) {}

TensorView Data::view() { return {bytes_.data() + kGuard, Shape{numel_}, dtype_}; }

void Data::set(std::int64_t i, float value) {
  unsigned char* p = bytes_.data() + kGuard + i * dtype_bytes(dtype_);
  if (dtype_ == DType::f32) std::memcpy(p, &value, 4);
  if (dtype_ == DType::bf16) *reinterpret_cast<bf16*>(p) = bf16(value);
  if (dtype_ == DType::f16) *reinterpret_cast<f16*>(p) = f16(value);
}

void Data::fill_as(int rank) {
  for (std::int64_t i = 0; i < numel_; ++i) set(i, value_of(rank, i));
}

bool Data::guards_are_whole() const {
  for (std::size_t i = 0; i < kGuard; ++i) {
    if (bytes_[i] != kPoison || bytes_[bytes_.size() - 1 - i] != kPoison) return false;
  }
  return true;
}

float Data::at(std::int64_t i) const {
  const unsigned char* p = bytes_.data() + kGuard + i * dtype_bytes(dtype_);
  if (dtype_ == DType::bf16) return static_cast<float>(*reinterpret_cast<const bf16*>(p));
  if (dtype_ == DType::f16) return static_cast<float>(*reinterpret_cast<const f16*>(p));
  float value = 0;
  std::memcpy(&value, p, sizeof value);
  return value;
}

std::int64_t Data::first_wrong_sum(const Data& expected, int num_ranks) const {
  const double eps = dtype_ == DType::f32 ? 0x1p-23 : dtype_ == DType::f16 ? 0x1p-10 : 0x1p-7;
  const double allowed = num_ranks * num_ranks * 256 * eps;  // partial sums are below num_ranks * 256
  for (std::int64_t i = 0; i < numel_; ++i) {
    if (!(std::abs(static_cast<double>(at(i)) - static_cast<double>(expected.at(i))) <= allowed)) return i;
  }
  return -1;
}

std::int64_t Data::first_difference(const Data& other) const {
  const auto size = static_cast<std::size_t>(dtype_bytes(dtype_));
  for (std::int64_t i = 0; i < numel_; ++i) {
    const std::size_t at = kGuard + static_cast<std::size_t>(i) * size;
    if (std::memcmp(bytes_.data() + at, other.bytes_.data() + at, size) != 0) return i;
  }
  return -1;
}

float folded(int num_ranks, std::int64_t i, DType dtype, ReduceOp op) {
  float result = rounded(value_of(0, i), dtype);
  for (int r = 1; r < num_ranks; ++r) {
    const float x = rounded(value_of(r, i), dtype);
    result = op == ReduceOp::sum ? result + x : std::max(result, x);
  }
  return result;
}

void check_orders_differ(int num_ranks, DType dtype) {
  std::int64_t num_differing = 0;
  for (std::int64_t i = 0; i < 1000; ++i) {
    float reversed = rounded(value_of(num_ranks - 1, i), dtype);
    for (int r = num_ranks - 2; r >= 0; --r) reversed += rounded(value_of(r, i), dtype);
    num_differing += rounded(reversed, dtype) != rounded(folded(num_ranks, i, dtype, ReduceOp::sum), dtype) ? 1 : 0;
  }
  EXPECT_GE(num_differing, num_ranks < 3 ? 0 : 200) << num_ranks << " ranks, " << dtype_name(dtype);
}

void check_all_gather(ProcessGroup& group, Stream& s, std::int64_t shard_numel, DType dtype, bool in_place) {
  SCOPED_TRACE(::testing::Message() << "all_gather P=" << shard_numel << " " << dtype_name(dtype) << " in_place=" << in_place);
  const std::int64_t total = shard_numel * group.num_ranks();
  Data full(total, dtype), shard(shard_numel, dtype), expected(total, dtype);
  for (std::int64_t i = 0; i < total; ++i) expected.set(i, value_of(static_cast<int>(i / shard_numel), i % shard_numel));
  shard.fill_as(group.rank());
  for (std::int64_t i = 0; i < shard_numel && in_place; ++i) full.set(group.rank() * shard_numel + i, value_of(group.rank(), i));
  const ConstTensorView own = in_place ? full.view().slice(group.rank() * shard_numel, shard_numel) : shard.view();
  group.all_gather(s, "gather", own, full.view());
  s.synchronize();
  EXPECT_EQ(full.first_difference(expected), -1);
  EXPECT_TRUE(full.guards_are_whole());
}

void check_reduce_scatter(ProcessGroup& group, Stream& s, std::int64_t shard_numel, DType dtype, bool in_place, SumOrder order) {
  SCOPED_TRACE(::testing::Message() << "reduce_scatter P=" << shard_numel << " " << dtype_name(dtype) << " in_place=" << in_place);
  const std::int64_t total = shard_numel * group.num_ranks();
  const std::int64_t begin = group.rank() * shard_numel;
  Data full(total, dtype), unchanged(total, dtype), shard(shard_numel, dtype), expected(shard_numel, dtype);
  full.fill_as(group.rank());
  unchanged.fill_as(group.rank());
  for (std::int64_t i = 0; i < shard_numel; ++i) {
    const float sum = folded(group.num_ranks(), begin + i, dtype, ReduceOp::sum);
    expected.set(i, sum);
    if (in_place) unchanged.set(begin + i, sum);
  }
  group.reduce_scatter(s, "reduce", full.view(), in_place ? full.view().slice(begin, shard_numel) : shard.view());
  s.synchronize();
  if (order == SumOrder::ranks) {
    EXPECT_TRUE(in_place || shard.first_difference(expected) == -1);
    EXPECT_EQ(full.first_difference(unchanged), -1) << "outside the own slice the input is unchanged";
  } else {
    EXPECT_TRUE(in_place || shard.first_wrong_sum(expected, group.num_ranks()) == -1);
    EXPECT_EQ(full.first_wrong_sum(unchanged, group.num_ranks()), -1);
  }
  EXPECT_TRUE(full.guards_are_whole() && shard.guards_are_whole());
}

void check_all_reduce(ProcessGroup& group, Stream& s, std::int64_t numel, DType dtype, ReduceOp op, SumOrder order) {
  SCOPED_TRACE(::testing::Message() << "all_reduce n=" << numel << " " << dtype_name(dtype) << (op == ReduceOp::sum ? " sum" : " max"));
  Data data(numel, dtype), expected(numel, dtype);
  data.fill_as(group.rank());
  for (std::int64_t i = 0; i < numel; ++i) expected.set(i, folded(group.num_ranks(), i, dtype, op));
  group.all_reduce(s, "all", data.view(), op);
  s.synchronize();
  EXPECT_EQ(
      order == SumOrder::ranks || op == ReduceOp::max ? data.first_difference(expected) : data.first_wrong_sum(expected, group.num_ranks()),
      -1);
  EXPECT_TRUE(data.guards_are_whole());
}

void check_all_to_all(ProcessGroup& group, Stream& s, std::int64_t slice_numel, DType dtype) {
  SCOPED_TRACE(::testing::Message() << "all_to_all P=" << slice_numel << " " << dtype_name(dtype));
  const std::int64_t total = slice_numel * group.num_ranks();
  Data sent(total, dtype), unchanged(total, dtype), received(total, dtype), expected(total, dtype);
  sent.fill_as(group.rank());
  unchanged.fill_as(group.rank());
  for (std::int64_t i = 0; i < total; ++i) {
    const auto from = static_cast<int>(i / slice_numel);
    expected.set(i, value_of(from, group.rank() * slice_numel + i % slice_numel));
  }
  group.all_to_all(s, "swap", sent.view(), received.view());
  s.synchronize();
  EXPECT_EQ(received.first_difference(expected), -1);
  EXPECT_EQ(sent.first_difference(unchanged), -1);
  EXPECT_TRUE(sent.guards_are_whole() && received.guards_are_whole());
}

void check_broadcast(ProcessGroup& group, Stream& s, std::int64_t numel, DType dtype, int root) {
  SCOPED_TRACE(::testing::Message() << "broadcast n=" << numel << " " << dtype_name(dtype) << " root=" << root);
  Data data(numel, dtype), expected(numel, dtype);
  data.fill_as(group.rank());
  expected.fill_as(root);
  group.broadcast(s, "cast", data.view(), root);
  s.synchronize();
  EXPECT_EQ(data.first_difference(expected), -1);
  EXPECT_TRUE(data.guards_are_whole());
}

void check_collectives(ProcessGroup& group, Stream& s, std::span<const std::int64_t> numels, bool counts_alone, SumOrder order) {
  const bool counts = group.num_ranks() > 1 || counts_alone;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) check_orders_differ(group.num_ranks(), dtype);
  group.reset_counts();
  CollectiveCounts expected;
  const auto expect = [&](Collective kind, std::int64_t numel, DType dtype) {
    if (!counts || numel == 0) return;
    ++expected.calls[static_cast<std::size_t>(kind)];
    expected.bytes[static_cast<std::size_t>(kind)] += numel * dtype_bytes(dtype);
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t n : numels) {
      for (const bool in_place : {false, true}) {
        check_all_gather(group, s, n, dtype, in_place);
        check_reduce_scatter(group, s, n, dtype, in_place, order);
        expect(Collective::all_gather, n * group.num_ranks(), dtype);
        expect(Collective::reduce_scatter, n * group.num_ranks(), dtype);
      }
      check_all_to_all(group, s, n, dtype);
      expect(Collective::all_to_all, n * group.num_ranks(), dtype);
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
        check_all_reduce(group, s, n, dtype, op, order);
        expect(Collective::all_reduce, n, dtype);
      }
      for (const int root : {0, group.num_ranks() - 1}) {
        check_broadcast(group, s, n, dtype, root);
        expect(Collective::broadcast, n, dtype);
      }
      group.barrier(s, "meet");
      if (counts) ++expected.calls[static_cast<std::size_t>(Collective::barrier)];
    }
  }
  s.synchronize();
  EXPECT_EQ(group.counts().calls, expected.calls);
  EXPECT_EQ(group.counts().bytes, expected.bytes);
}

}  // namespace mica::testing
