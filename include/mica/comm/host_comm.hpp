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

/// Ranks that talk to each other from the host: in set-up, state dicts, saving and loading, never inside a step.
/// [Note: agreement] Work may fail on one rank alone, while the others go on to a collective and wait for it there. So
/// agree() and its kin run it: if it fails on any rank, every rank throws the lowest failing rank's error, of its type
/// (the nearest of core/error.hpp), with "rank N: " before its text unless all ranks failed alike. is_shared() tells
/// an error that all these ranks throw from any other. Work may itself agree on something, if nothing before that can
/// fail on one rank alone (what can is agreed on first): an error that comes out of it is agreed on again.
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
  /// What the ranks have for this one, by rank. @param to_each  one a rank.
  [[nodiscard]] virtual std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const = 0;

  /// Did every rank's work succeed? Where it did this costs one collective of 8 bytes a rank.
  void agree(const std::function<void()>& work) const;
  /// The same for work with results. @returns those of all ranks, in rank order.
  std::vector<std::string> all_or_throw(const std::function<std::string()>& work) const;
  /// The results on rank 0 alone; the other ranks get an empty list.
  std::vector<std::string> to_first_rank(const std::function<std::string()>& work) const;
  /// Work of `root` alone; every rank gets its result, or its error with "rank N: " before it.
  std::string from_root(int root, const std::function<std::string()>& work) const;
  /// Work of rank 0 for the whole job, which every rank might have done: its error's text is as it is.
  std::string from_first_rank(const std::function<std::string()>& work) const;
  /// Work of rank 0 alone with a result for each rank, which gets its own. Errors as from_root().
  std::string from_first_rank_to_each(const std::function<std::vector<std::string>()>& work) const;

  /// Whether all these ranks throw this error, because they agreed on it. Local.
  [[nodiscard]] bool is_shared(const std::exception& error) const;

 private:
  /// What the root's work gave, or its error, in one text.
  [[nodiscard]] std::string broadcast_outcome(int root, const std::function<std::string()>& work) const;
  /// Every rank's text where any has one; may be an empty list where none has.
  [[nodiscard]] virtual std::vector<std::string> gather_errors(const std::string& mine) const {
    return gather_strings(mine);
  }
};

/// A run of one rank.
[[nodiscard]] std::unique_ptr<HostComm> make_single_comm();
/// @param comm  outlives it.
[[nodiscard]] std::unique_ptr<HostComm> make_mpi_comm(const mpi::Communicator& comm);
/// The ranks of a process group, whatever its backend. (In a group that moves nothing all ranks are like this one.)
/// @param group, stream  outlive it; the stream is synchronised by every call.
/// @param label  of its collectives, for error texts and the flight recorder
[[nodiscard]] std::unique_ptr<HostComm> make_group_comm(ProcessGroup& group, Stream& stream,
                                                        std::string label = "agreement");

/// Every rank's numbers, by rank: equally many on all. One all-gather; the stream is synchronised. @collective
[[nodiscard]] std::vector<std::vector<std::int64_t>> gather_numbers(ProcessGroup& group, Stream& stream,
                                                                    const char* label,
                                                                    const std::vector<std::int64_t>& mine);

/// The root's bytes reach every rank of a group for memory of the host; the host waits. Where ranks may die alone (MPI) at
/// most `timeout`, so for set-up that must not hang. No other use of the group is under way. @collective
/// @throws MpiError naming the ranks that did not come in time
void broadcast_within(ProcessGroup& group, std::span<std::byte> data, int root, std::chrono::milliseconds timeout);

}  // namespace mica
