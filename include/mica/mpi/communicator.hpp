// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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

/// Observes a communicator's exchanges, for a watchdog outside MPI. One thread at a time.
class ExchangeRecord {
 public:
  virtual ~ExchangeRecord() = default;
  ExchangeRecord(const ExchangeRecord&) = delete;
  ExchangeRecord& operator=(const ExchangeRecord&) = delete;
  /// @param kind  "barrier", "all_gather", "all_to_all", "broadcast" or "all_reduce"
  virtual void begin(const char* kind, std::int64_t bytes) = 0;
  virtual void end(bool succeeded) = 0;

 protected:
  ExchangeRecord() = default;
};
/// Makes the record for a communicator. @param world_ranks  of its members, by rank
using MakeExchangeRecord = std::function<std::unique_ptr<ExchangeRecord>(const std::vector<int>& world_ranks)>;
/// Gives every Communicator that is made from now on, or begins to record again, a record; empty: no longer. Call it on MPI's main thread.
void record_exchanges(MakeExchangeRecord make);

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
  /// The rank in MPI_COMM_WORLD of each member. Not collective.
  [[nodiscard]] const std::vector<int>& world_ranks() const { return world_ranks_; }
  /// The rank in `other`, which must contain them all, of each member. Not collective.
  [[nodiscard]] std::vector<int> ranks_in(const Communicator& other) const;
  /// Ends recording. For a communicator whose exchanges wait for the other ranks' work, which the watchdog would take for a hang; or that
  /// has no exchanges for now.
  void leave_unrecorded() { record_.reset(); }
  /// Begins it again: all members, in the same order among communicators of the same members.
  void record();
  void barrier() const;
  /// Every rank's string, in rank order. @collective
  [[nodiscard]] std::vector<std::string> gather_strings(const std::string& mine) const;
  /// Every rank's numbers, by rank; all ranks give the same count. One MPI call. @collective
  [[nodiscard]] std::vector<std::vector<std::int64_t>> gather_numbers(const std::vector<std::int64_t>& mine) const;
  /// The strings that the ranks sent to this one, by rank. @param to_each  one per rank. @collective
  [[nodiscard]] std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const;
  [[nodiscard]] std::string broadcast_string(const std::string& mine, int root) const;
  [[nodiscard]] std::int64_t all_max(std::int64_t mine) const;
  [[nodiscard]] std::int64_t all_sum(std::int64_t mine) const;

 private:
  Communicator(MPI_Comm owned, std::vector<int> world_ranks);
  /// `part` has some of these ranks, this one among them. @collective over it
  [[nodiscard]] Communicator from_part(MPI_Comm part) const;

  UniqueHandle<CommTraits> comm_;
  std::vector<int> world_ranks_;
  int rank_ = 0;
  int num_ranks_ = 1;
  std::unique_ptr<ExchangeRecord> record_;
};

}  // namespace mica::mpi
