#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mica/comm/process_group.hpp"
#include "mica/mpi/communicator.hpp"

namespace mica::checkpoint {

/// Ranks that save or load together, and how they talk: texts and bytes, from the host.
/// All: @collective, same order on all ranks. Not inside a step.
class HostComm {
 public:
  virtual ~HostComm() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int num_ranks() const = 0;
  /// Every rank's text, in rank order, on every rank.
  [[nodiscard]] virtual std::vector<std::string> gather_strings(const std::string& mine) const = 0;
  /// Root's text on every rank.
  [[nodiscard]] virtual std::string broadcast_string(const std::string& mine, int root) const = 0;
  /// What the ranks have for this one, by rank. @param to_each  one a rank.
  [[nodiscard]] virtual std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const = 0;

  /// Did every rank's `action` succeed? If not, every rank throws the lowest failing rank's error, of its type and with
  /// "rank N: " before its text when there are several. @returns what the actions returned, in rank order.
  template <class Action>
  std::vector<std::string> all_or_throw(Action&& action) const {
    std::string result;
    std::string error;
    try {
      result = action();
    } catch (...) {
      error = describe_current_exception();
    }
    return settle(result, error);
  }
  /// The same for an action of `root` alone; every rank gets its result.
  template <class Action>
  std::string from_root(int root, Action&& action) const {
    std::string result;
    std::string error;
    if (rank() == root) {
      try {
        result = action();
      } catch (...) {
        error = describe_current_exception();
      }
    }
    return settle_root(result, error, root);
  }

  /// The actions' results on rank 0 alone, in rank order; the other ranks get an empty list. Fails as all_or_throw()
  /// does.
  template <class Action>
  std::vector<std::string> to_first_rank(Action&& action) const {
    std::string result;
    (void)all_or_throw([&] {
      result = action();
      return std::string();
    });
    return gather_to_first_rank(std::move(result));
  }
  /// Rank 0's action has a text for each rank, which gets its own. If the action fails, every rank throws its error.
  template <class Action>
  std::string from_first_rank_to_each(Action&& action) const {
    std::vector<std::string> to_each;
    std::string error;
    if (rank() == 0) {
      try {
        to_each = action();
      } catch (...) {
        error = describe_current_exception();
      }
    }
    return settle_first_rank(std::move(to_each), error);
  }

 private:
  [[nodiscard]] std::vector<std::string> gather_to_first_rank(std::string mine) const;
  [[nodiscard]] std::string settle_first_rank(std::vector<std::string> to_each, const std::string& error) const;
  /// The exception that is being handled as a text that carries its type. Never empty.
  static std::string describe_current_exception();
  std::vector<std::string> settle(const std::string& result, const std::string& error) const;
  std::string settle_root(const std::string& result, const std::string& error, int root) const;
};

/// A run of one rank.
[[nodiscard]] std::unique_ptr<HostComm> make_single_comm();
/// @param comm  outlives it.
[[nodiscard]] std::unique_ptr<HostComm> make_mpi_comm(const mpi::Communicator& comm);
/// The ranks of a process group, whatever its backend (threads in one process, for tests). Ranks are the group's.
/// @param group, stream  outlive it; the stream is synchronised by every call.
[[nodiscard]] std::unique_ptr<HostComm> make_group_comm(ProcessGroup& group, Stream& stream);

}  // namespace mica::checkpoint
