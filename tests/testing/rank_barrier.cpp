// SPDX-License-Identifier: Apache-2.0
#include "testing/rank_barrier.hpp"

#include <utility>

namespace mica {

RankBarrier::RankBarrier(std::vector<int> names, std::chrono::milliseconds stall_timeout)
    : names_(std::move(names)), stall_timeout_(stall_timeout), is_here_(names_.size(), false) {}

void RankBarrier::come(std::unique_lock<std::mutex>& lock, int rank) {
  is_here_[static_cast<std::size_t>(rank)] = true;
  if (++num_here_ < names_.size()) return;
  num_here_ = 0;
  is_here_.assign(names_.size(), false);
  ++generation_;
  lock.unlock();  // the woken ranks need the mutex
  all_came_.notify_all();
  lock.lock();
}

void RankBarrier::arrive(int rank, const std::string& what) {
  std::unique_lock lock(mutex_);
  if (!closed_.empty()) throw PeerLeft(what + ": " + closed_);
  const std::uint64_t generation = generation_;
  const auto deadline = std::chrono::steady_clock::now() + stall_timeout_;
  come(lock, rank);
  while (generation_ == generation) {
    if (!closed_.empty()) throw PeerLeft(what + ": " + closed_);
    if (all_came_.wait_until(lock, deadline) == std::cv_status::no_timeout || generation_ != generation || !closed_.empty()) {
      continue;
    }
    const std::string text = fmt::format("{}: waited {} ms for rank(s) {}; do all ranks make the same calls in the same order?", what,
                                         stall_timeout_.count(), missing());
    closed_ = fmt::format("rank {} gave up waiting", names_[static_cast<std::size_t>(rank)]);
    has_failed_ = true;
    all_came_.notify_all();
    throw Error(text);
  }
}

void RankBarrier::finish(int rank) {
  std::unique_lock lock(mutex_);
  const std::uint64_t generation = generation_;
  come(lock, rank);
  all_came_.wait(lock, [&] { return generation_ != generation; });
}

void RankBarrier::close(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (closed_.empty()) closed_ = reason;
  has_failed_ = true;
  all_came_.notify_all();
}

void RankBarrier::leave(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  ++num_left_;
  if (closed_.empty()) closed_ = reason;
  all_came_.notify_all();
}

void RankBarrier::require_peers(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (has_failed_ || num_left_ + 1 >= names_.size()) throw PeerLeft(what + ": " + closed_);
}

std::string RankBarrier::missing() const {
  std::string text;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (!is_here_[i]) text += fmt::format("{}{}", text.empty() ? "" : ", ", names_[i]);
  }
  return text;
}

}  // namespace mica
