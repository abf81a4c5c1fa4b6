// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include <mpi.h>

#include "mica/core/unique_handle.hpp"

namespace mica::mpi {

/// @throws MpiError with MPI's text, the call and its location, unless rc is MPI_SUCCESS.
void check(int rc, const char* call, std::source_location where = std::source_location::current());

struct CommTraits {
  using type = MPI_Comm;
  static type null() { return MPI_COMM_NULL; }
  static void close(type comm) noexcept;
};

/// An owned communicator, with the few host-side (set-up) operations that Mica needs. Small data only.
class Communicator {
 public:
  explicit Communicator(MPI_Comm owned);
  /// A duplicate of MPI_COMM_WORLD. @collective
  static Communicator world();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int num_ranks() const { return num_ranks_; }
  [[nodiscard]] MPI_Comm get() const { return comm_.get(); }

  [[nodiscard]] Communicator duplicate() const;                ///< @collective
  [[nodiscard]] Communicator split(int color, int key) const;  ///< @collective
  [[nodiscard]] Communicator split_node() const;               ///< ranks that share memory. @collective
  /// The rank in `other` of each of this one's ranks, all of which are in it. Nothing is sent.
  [[nodiscard]] std::vector<int> ranks_in(const Communicator& other) const;
  void barrier() const;
  /// Every rank's string, in rank order. @collective
  [[nodiscard]] std::vector<std::string> gather_strings(const std::string& mine) const;
  /// The strings that the ranks sent to this one, by rank. @param to_each  one per rank. @collective
  [[nodiscard]] std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const;
  [[nodiscard]] std::string broadcast_string(const std::string& mine, int root) const;
  [[nodiscard]] std::int64_t all_max(std::int64_t mine) const;
  [[nodiscard]] std::int64_t all_sum(std::int64_t mine) const;

 private:
  UniqueHandle<CommTraits> comm_;
  int rank_ = 0;
  int num_ranks_ = 1;
};

}  // namespace mica::mpi
