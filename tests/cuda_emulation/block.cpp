// SPDX-License-Identifier: Apache-2.0
#include "block.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

__thread uint3 threadIdx;
__thread uint3 blockIdx;
__thread dim3 blockDim;
__thread dim3 gridDim;

namespace mica::cuda_emulation {

namespace {

bool is_same(const std::source_location& a, const std::source_location& b) {
  if (std::memcmp(&a, &b, sizeof(a)) == 0) return true;
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

void print(const char* what, const std::source_location& where) {
  std::fprintf(stderr, "  %s %s:%u in %s\n", what, where.file_name(), where.line(), where.function_name());
}

}  // namespace

Block& Block::current() {
  thread_local Block block;
  return block;
}

Block::Block() : fibers_(&Block::fiber_main) {}

void Block::run(const Launch& launch) {
  launch_ = &launch;
  num_threads_ = blockDim.x * blockDim.y * blockDim.z;
  next_ = ended_ = 0;
  current_ = &host_;
  switch_to(fibers_.take());
}

void Block::fiber_main() {
  for (;;) current().start_threads();
}

/// What a fiber does that carries no waiting thread.
void Block::start_threads() {
  while (next_ < num_threads_) {
    const unsigned id = running_ = next_++;
    Thread& thread = threads_[id];
    thread.index = {id % blockDim.x, id / blockDim.x % blockDim.y, id / (blockDim.x * blockDim.y)};
    thread.state = State::running;
    threadIdx = thread.index;
    launch_->call(launch_->arguments.get());
    thread.state = State::ended;
    ++ended_;
  }
  fibers_.give_back(*current_);
  go_on();
}

void Block::switch_to(Fiber& fiber) {
  Fiber& from = *current_;
  current_ = &fiber;
  fiber.switch_from(from);
}

void Block::go_on() {
  if (ready_count_ > 0) {
    running_ = ready_[ready_first_];
    ready_first_ = (ready_first_ + 1) % kMostThreads;
    --ready_count_;
    threadIdx = threads_[running_].index;
    switch_to(*threads_[running_].fiber);
  } else if (next_ < num_threads_) {
    switch_to(fibers_.take());
  } else if (ended_ == num_threads_) {
    switch_to(host_);
  } else {
    report("divergent barrier: no thread can go on");
  }
}

void Block::wait(State state) {
  Thread& thread = threads_[running_];
  thread.state = state;
  thread.fiber = current_;
  go_on();
  thread.state = State::running;
}

void Block::wake(unsigned thread) { ready_[(ready_first_ + ready_count_++) % kMostThreads] = static_cast<std::uint16_t>(thread); }

int Block::barrier(int value, const std::source_location& where) {
  if (at_barrier_ == 0) {
    barrier_where_ = where;
    barrier_sum_ = 0;
  } else if (!is_same(barrier_where_, where)) {
    report("divergent barrier: threads of one block wait at two of them", barrier_where_, where);
  }
  barrier_sum_ += value;
  if (++at_barrier_ < num_threads_) {
    wait(State::at_barrier);
    return barrier_result_;
  }
  at_barrier_ = 0;
  barrier_result_ = barrier_sum_;
  for (unsigned thread = 0; thread < num_threads_; ++thread) {
    if (thread != running_) wake(thread);
  }
  return barrier_result_;
}

unsigned Block::lanes_of(unsigned warp) const {
  const unsigned lanes = std::min(kWarp, num_threads_ - warp * kWarp);
  return lanes == kWarp ? ~0U : (1U << lanes) - 1;
}

const std::array<std::uint64_t, Block::kWarp>& Block::meet(unsigned mask, std::uint64_t value, const std::source_location& where) {
  const unsigned first = running_ / kWarp * kWarp;
  Warp& warp = warps_[running_ / kWarp];
  const unsigned lane = running_ - first;
  if ((mask >> lane & 1U) == 0) report("a lane that its own mask does not name", where, where);
  if (warp.arrived == 0) {
    warp.mask = mask;
    warp.where = where;
  } else if (warp.mask != mask) {
    report("lanes of one warp meet with different masks", warp.where, where);
  } else if (!is_same(warp.where, where)) {
    report("divergent warp: lanes of one warp meet at two places", warp.where, where);
  }
  auto& values = warp.values[warp.turn];
  values[lane] = value;
  warp.arrived |= 1U << lane;
  const unsigned expected = mask & lanes_of(running_ / kWarp);
  if (warp.arrived != expected) {
    wait(State::at_warp);
    return values;
  }
  warp.arrived = 0;
  warp.turn ^= 1U;
  for (unsigned other = 0; other < kWarp; ++other) {
    if (other != lane && (expected >> other & 1U) != 0) wake(first + other);
  }
  return values;
}

std::uint64_t Block::shuffle(unsigned mask, std::uint64_t bits, Shuffle kind, int argument, int width, const std::source_location& where) {
  const int lane = static_cast<int>(running_ % kWarp);
  const unsigned existing = lanes_of(running_ / kWarp);
  const auto& values = meet(mask, bits, where);
  const int begin = lane / width * width;  // of this lane's group
  int source = lane;
  switch (kind) {
    case Shuffle::from_lane:
      source = begin + (argument & (width - 1));
      break;
    case Shuffle::exclusive_or:
      source = lane ^ argument;
      break;
    case Shuffle::up:
      source = lane - argument < begin ? lane : lane - argument;
      break;
    case Shuffle::down:
      source = lane + argument >= begin + width ? lane : lane + argument;
      break;
  }
  if (source >= begin + width) source = lane;  // an exclusive or may read earlier groups, but not later ones
  if (((mask & existing) >> source & 1U) == 0) {
    report("a shuffle from a lane that does not take part", where, where);
  }
  return values[static_cast<std::size_t>(source)];
}

unsigned Block::vote(unsigned mask, bool predicate, const std::source_location& where) {
  const unsigned expected = mask & lanes_of(running_ / kWarp);
  const auto& values = meet(mask, predicate ? 1 : 0, where);
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((expected >> lane & 1U) != 0 && values[lane] != 0) ballot |= 1U << lane;
  }
  return ballot;
}

void Block::report(const char* problem) {
  unsigned waiting = 0, in_warps = 0;
  for (unsigned i = 0; i < next_; ++i) {
    waiting += threads_[i].state == State::at_barrier ? 1 : 0;
    in_warps += threads_[i].state == State::at_warp ? 1 : 0;
  }
  std::fprintf(stderr,
               "CUDA emulation: %s\n  block (%u, %u, %u) of %u threads: %u wait at a barrier, %u for lanes of their "
               "warp, %u have ended\n",
               problem, blockIdx.x, blockIdx.y, blockIdx.z, num_threads_, waiting, in_warps, ended_);
  if (waiting > 0) print("barrier", barrier_where_);
  for (unsigned warp = 0; warp * kWarp < num_threads_; ++warp) {
    if (warps_[warp].arrived != 0) {
      std::fprintf(stderr, "  warp %u: lanes %#x of %#x have come to\n", warp, warps_[warp].arrived, warps_[warp].mask);
      print("  ", warps_[warp].where);
    }
  }
  std::abort();
}

void Block::report(const char* problem, const std::source_location& first, const std::source_location& second) {
  std::fprintf(stderr, "CUDA emulation: %s\n  block (%u, %u, %u), thread (%u, %u, %u)\n", problem, blockIdx.x, blockIdx.y, blockIdx.z,
               threadIdx.x, threadIdx.y, threadIdx.z);
  print("one at", first);
  print("one at", second);
  std::abort();
}

int block_barrier(int value, const std::source_location& where) { return Block::current().barrier(value, where); }
std::uint64_t warp_shuffle(unsigned mask, std::uint64_t bits, Shuffle shuffle, int argument, int width, const std::source_location& where) {
  return Block::current().shuffle(mask, bits, shuffle, argument, width, where);
}
unsigned warp_vote(unsigned mask, bool predicate, const std::source_location& where) {
  return Block::current().vote(mask, predicate, where);
}

}  // namespace mica::cuda_emulation
