// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mica/comm/process_group.hpp"

/// What every backend of ProcessGroup must do, checked bit by bit against sums that are folded here, in rank order. A library of its own,
/// compiled for speed: tests compare millions of elements.
namespace mica::testing {

/// Element i of rank r's data: numbers of very different sizes, with all the bits that the dtype has, and in every
/// third element two large ones that cancel, so that another order of the sum, or a sum in low precision, gives other
/// bits (check_orders_differ()).
float value_of(int rank, std::int64_t i);

float rounded(float value, DType dtype);

/// Elements in memory, between guard bytes.
class Data {
 public:
  Data(std::int64_t numel, DType dtype);

  [[nodiscard]] TensorView view();
  [[nodiscard]] std::int64_t numel() const { return numel_; }
  void set(std::int64_t i, float value);
  void fill_as(int rank);
  [[nodiscard]] bool guards_are_whole() const;
  [[nodiscard]] float at(std::int64_t i) const;
  /// The first element of a sum over `num_ranks` that is further off than any order of adding in this dtype explains, or -1.
  [[nodiscard]] std::int64_t first_wrong_sum(const Data& expected, int num_ranks) const;
  /// The first element whose bits differ, or -1.
  [[nodiscard]] std::int64_t first_difference(const Data& other) const;

 private:
  std::int64_t numel_;
  DType dtype_;
  std::vector<unsigned char> bytes_;
};

/// Sum (or maximum) over ranks of element i, as [Note: process groups] promises it.
float folded(int num_ranks, std::int64_t i, DType dtype, ReduceOp op);

/// Whose sums a backend promises: folded in rank order, bit by bit, or in an order of its own.
enum class SumOrder : std::uint8_t { ranks, any };

/// That the checks below tell rank order from its reverse: of three ranks on (two terms have no order) many sums
/// differ.
void check_orders_differ(int num_ranks, DType dtype);
void check_all_gather(ProcessGroup& group, Stream& s, std::int64_t shard_numel, DType dtype, bool in_place);
void check_reduce_scatter(ProcessGroup& group, Stream& s, std::int64_t shard_numel, DType dtype, bool in_place,
                          SumOrder order = SumOrder::ranks);
void check_all_reduce(ProcessGroup& group, Stream& s, std::int64_t numel, DType dtype, ReduceOp op, SumOrder order = SumOrder::ranks);
void check_all_to_all(ProcessGroup& group, Stream& s, std::int64_t slice_numel, DType dtype);
void check_broadcast(ProcessGroup& group, Stream& s, std::int64_t numel, DType dtype, int root);
/// Every collective, dtype and size; asserts how many calls were counted. A group of one rank counts none, unless it goes
/// by its backend all the same.
void check_collectives(ProcessGroup& group, Stream& s, std::span<const std::int64_t> numels, bool counts_alone = false,
                       SumOrder order = SumOrder::ranks);

inline const char* mode_name(StreamMode mode) { return mode == StreamMode::threaded ? "threaded" : "inlined"; }

}  // namespace mica::testing
