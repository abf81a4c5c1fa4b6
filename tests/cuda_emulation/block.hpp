// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <source_location>

#include <cuda_runtime.h>

#include "fiber.hpp"

namespace mica::cuda_emulation {

/// The block that this thread of the host runs. [Note: fibers of a block]
/// Threads start in order, on one fiber as long as none waits: a thread that never waits costs a function call. One
/// that waits keeps its fiber, and another fiber goes on. So nothing runs at the same time, and a block's outcome is
/// always the same.
class Block {
 public:
  static constexpr unsigned kMostThreads = 1024;
  static constexpr unsigned kWarp = 32;

  static Block& current();

  /// Runs one block to its end. Sets threadIdx; blockIdx, blockDim and gridDim are the caller's.
  void run(const Launch& launch);

  void check_stacks() const { fibers_.check_stacks(); }

  int barrier(int value, const std::source_location& where);
  std::uint64_t shuffle(unsigned mask, std::uint64_t bits, Shuffle kind, int argument, int width, const std::source_location& where);
  unsigned vote(unsigned mask, bool predicate, const std::source_location& where);

 private:
  enum class State { running, at_barrier, at_warp, ended };
  struct Thread {
    uint3 index{};
    State state = State::running;
    Fiber* fiber = nullptr;
  };
  /// Lanes on their way through a shuffle or vote. A lane may be at the next one while others still read this one's
  /// values, hence two of each.
  struct Warp {
    unsigned mask = 0;
    unsigned arrived = 0;
    unsigned turn = 0;
    std::source_location where;
    std::array<std::array<std::uint64_t, kWarp>, 2> values{};
  };

  Block();
  [[noreturn]] static void fiber_main();
  void start_threads();
  void switch_to(Fiber& fiber);
  void go_on();
  void wait(State state);
  void wake(unsigned thread);
  /// Waits for the lanes of `mask`. @return what they brought
  const std::array<std::uint64_t, kWarp>& meet(unsigned mask, std::uint64_t value, const std::source_location& where);
  [[nodiscard]] unsigned lanes_of(unsigned warp) const;
  [[noreturn]] void report(const char* problem);
  [[noreturn]] void report(const char* problem, const std::source_location& first, const std::source_location& second);

  FiberPool fibers_;
  Fiber host_;
  Fiber* current_ = nullptr;
  const Launch* launch_ = nullptr;
  unsigned num_threads_ = 0;
  unsigned next_ = 0;  ///< the first thread that has not started
  unsigned ended_ = 0;
  unsigned running_ = 0;
  std::array<Thread, kMostThreads> threads_;
  std::array<Warp, kMostThreads / kWarp> warps_;
  std::array<std::uint16_t, kMostThreads> ready_;  ///< ring of threads that may go on
  unsigned ready_first_ = 0, ready_count_ = 0;
  unsigned at_barrier_ = 0;
  int barrier_sum_ = 0, barrier_result_ = 0;
  std::source_location barrier_where_;
};

}  // namespace mica::cuda_emulation
