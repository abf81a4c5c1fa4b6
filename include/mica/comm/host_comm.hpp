// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mica/comm/process_group.hpp"

namespace mica {

namespace mpi {
class Communicator;
}

/// Host-side exchange between ranks: for set-up, state dicts, saving and loading, never inside a step.
/// [Note: agreement] Work may fail on one rank alone, while the others continue to a collective and wait for it there. So
/// agree() and the functions like it run the work: if it fails on any rank, every rank throws the lowest failing rank's error, with
/// its type (the nearest in core/error.hpp) and exit status, and "rank N: " before its text unless all ranks failed with the same text.
/// is_shared() distinguishes an error that all these ranks throw from any other. Work may itself call agree() if nothing before that
/// call can fail on a single rank (agree on that part first); an error of the inner call is agreed on again.
/// All: @collective, same order on all ranks.
class HostComm {
 public:
  virtual ~HostComm() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int num_ranks() const = 0;
  /// Every rank's text (any bytes), in rank order, on every rank.
  [[nodiscard]] virtual std::vector<std::string> gather_strings(const std::string& mine) const = 0;
  /// Root's text on every rank.
  [[nodiscard]] virtual std::string broadcast_string(const std::string& mine, int root) const = 0;
  /// The strings that the ranks sent to this one, by rank. @param to_each  one per rank.
  [[nodiscard]] virtual std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const = 0;

  /// Runs the work and throws if it failed on any rank. If it succeeded, this costs one collective of 8 bytes per rank.
  void agree(const std::function<void()>& work) const;
  /// The same for work with a result. @returns all ranks' results, in rank order.
  std::vector<std::string> all_or_throw(const std::function<std::string()>& work) const;
  /// The same, with the results on rank 0 only; other ranks get an empty list.
  std::vector<std::string> to_first_rank(const std::function<std::string()>& work) const;
  /// Runs the work on `root` only; every rank gets its result, or its error with "rank N: " before it.
  std::string from_root(int root, const std::function<std::string()>& work) const;
  /// Runs the work on rank 0, where any rank could have done it: an error's text gets no "rank 0: ".
  std::string from_first_rank(const std::function<std::string()>& work) const;
  /// Runs the work on rank 0 only, with a result for each rank; each gets its own. Errors as from_root().
  std::string from_first_rank_to_each(const std::function<std::vector<std::string>()>& work) const;

  /// Whether all these ranks throw this error because they agreed on it. Not collective.
  [[nodiscard]] bool is_shared(const std::exception& error) const;

 private:
  /// The result of the root's work, or its error, as one text.
  [[nodiscard]] std::string broadcast_outcome(int root, const std::function<std::string()>& work) const;
  /// All ranks' texts if any is not empty; otherwise possibly an empty list.
  [[nodiscard]] virtual std::vector<std::string> gather_errors(const std::string& mine) const { return gather_strings(mine); }
};

/// For a run of one rank.
[[nodiscard]] std::unique_ptr<HostComm> make_single_comm();
/// @param comm  outlives it.
[[nodiscard]] std::unique_ptr<HostComm> make_mpi_comm(const mpi::Communicator& comm);
/// For the ranks of a process group, whatever its backend. (In a fake group, all ranks are assumed to pass the same data as this one.)
/// @param group, stream  outlive it; the stream is synchronised by every call.
/// @param label  of its collectives, for error texts and the flight recorder
[[nodiscard]] std::unique_ptr<HostComm> make_group_comm(ProcessGroup& group, Stream& stream, std::string label = "agreement");

/// Every rank's numbers, by rank; all ranks give the same count. One all-gather; the stream is synchronised. @collective
[[nodiscard]] std::vector<std::vector<std::int64_t>> gather_numbers(ProcessGroup& group, Stream& stream, const char* label,
                                                                    const std::vector<std::int64_t>& mine);

/// Broadcasts the root's bytes in a group for host memory; the host waits. Over MPI, where one rank may die alone, it waits at
/// most `timeout`, for set-up that must not hang. No other collective of the group may be pending. @collective
/// @throws MpiError naming the ranks that did not connect in time
void broadcast_within(ProcessGroup& group, std::span<std::byte> data, int root, std::chrono::milliseconds timeout);

}  // namespace mica
