// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "mica/comm/host_comm.hpp"

#include "testing/rank_barrier.hpp"

namespace mica::test {

/// Where the threads of a process leave texts for each other: a thousand of them in no more memory than the texts take.
class Board {
 public:
  explicit Board(int num_ranks) : left_(static_cast<std::size_t>(num_ranks)), together_(ranks(num_ranks), std::chrono::minutes(5)) {}

 private:
  friend class BoardComm;
  static std::vector<int> ranks(int num_ranks) {
    std::vector<int> all(static_cast<std::size_t>(num_ranks));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  std::vector<std::vector<std::string>> left_;  // by the rank that left them
  RankBarrier together_;
};

class BoardComm final : public HostComm {
 public:
  BoardComm(Board& board, int rank) : board_(board), rank_(rank) {}
  /// When an error ends the rank, the others wait for it no longer.
  ~BoardComm() override {
    if (std::uncaught_exceptions() > 0) board_.together_.close(fmt::format("rank {} failed", rank_));
  }
  BoardComm(const BoardComm&) = delete;
  BoardComm& operator=(const BoardComm&) = delete;
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int num_ranks() const override { return static_cast<int>(board_.left_.size()); }
  [[nodiscard]] std::vector<std::string> gather_strings(const std::string& mine) const override {
    return exchange({mine}, [this] { return of_each(0); });
  }
  [[nodiscard]] std::string broadcast_string(const std::string& mine, int root) const override {
    return exchange({mine}, [&] { return board_.left_[static_cast<std::size_t>(root)][0]; });
  }
  [[nodiscard]] std::vector<std::string> exchange_strings(const std::vector<std::string>& to_each) const override {
    return exchange(to_each, [this] { return of_each(static_cast<std::size_t>(rank_)); });
  }

 private:
  /// Leaves this rank's texts, and picks up others when all ranks have.
  template <class PickUp>
  std::invoke_result_t<const PickUp&> exchange(std::vector<std::string> texts, const PickUp& pick_up) const {
    board_.left_[static_cast<std::size_t>(rank_)] = std::move(texts);
    board_.together_.arrive(rank_, "texts left");
    auto found = pick_up();
    board_.together_.arrive(rank_, "texts picked up");
    return found;
  }
  [[nodiscard]] std::vector<std::string> of_each(std::size_t which) const {
    std::vector<std::string> found;
    found.reserve(board_.left_.size());
    for (const std::vector<std::string>& left : board_.left_) found.push_back(left[which]);
    return found;
  }

  Board& board_;
  int rank_;
};

}  // namespace mica::test
