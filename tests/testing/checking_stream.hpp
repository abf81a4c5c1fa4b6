// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mica/device/stream.hpp"

namespace mica {

/// One counter per stream, index 0 is the host. What a point in the order knows: everything of stream s up to tick
/// of(s) happened before it.
class VectorClock {
 public:
  [[nodiscard]] std::uint64_t of(std::size_t stream) const { return stream < ticks_.size() ? ticks_[stream] : 0; }
  void set(std::size_t stream, std::uint64_t tick);
  void tick(std::size_t stream) { set(stream, of(stream) + 1); }
  void join(const VectorClock& other);

 private:
  std::vector<std::uint64_t> ticks_;
};

/// Finds buffer accesses of two streams (or of a stream and the host) that no record()/wait() pair orders.
/// Order is a property of what was enqueued, so a race is found on every run, whatever the timing, also with inline
/// streams. [Note: checking stream]
/// - Each stream has a vector clock that ticks with every task and wait; record() stores a copy in the event and wait()
///   joins it. A task also knows what the host did before it enqueued the task, and the host what it has waited for.
/// - For each address the checker keeps the last write and the reads since. An access is a race unless the clock of its
///   stream knows the conflicting earlier ones.
/// - A pool hands the same addresses to one owner after another, so reuse without the wait is found like any other
/// race.
///   Other memory that is freed and reused must be forgotten: forget().
/// - Only the accesses declared in submit() are seen.
/// Use: wrap every stream of a rank with wrap(); violations() must be empty afterwards. It outlives the streams. One
/// host thread.
class HappensBeforeChecker {
 public:
  struct Violation {
    std::string text;  ///< "unshard:all_gather writes [0x..,+64) while compute:linear may still read it: ..."
  };

  HappensBeforeChecker();

  /// A stream that checks and forwards to `inner`, which it owns.
  [[nodiscard]] std::unique_ptr<Stream> wrap(std::unique_ptr<Stream> inner);
  /// The host itself is about to touch memory.
  void host_access(const char* what, Access access);
  /// The host has learned that `event` is complete in another way than by Event::wait_on_host() and
  /// Stream::synchronize(), which are seen by themselves.
  void host_joined(const Event& event);
  /// Memory that leaves the checked world (freed outside the pool).
  void forget(const void* data, std::int64_t bytes);

  [[nodiscard]] const std::vector<Violation>& violations() const { return violations_; }

 private:
  friend class CheckingStream;
  struct Use {
    std::size_t stream;
    std::uint64_t tick;
    std::string what;
  };
  struct Range {
    std::uintptr_t end;
    std::vector<Use> reads;   // since the last write, the latest of each stream
    std::vector<Use> writes;  // zero or one
  };
  using Ranges = std::map<std::uintptr_t, Range>;

  void access(std::size_t stream, const char* what, const Access& access);
  void note_read(std::uintptr_t begin, std::uintptr_t end, const Use& use);
  void note_write(std::uintptr_t begin, std::uintptr_t end, Use use);
  void check(const Use& use, const char* verb, const Access& access, const std::vector<Use>& earlier, const char* earlier_verb,
             std::size_t num_known);
  void split_at(std::uintptr_t address);

  std::vector<std::shared_ptr<VectorClock>> clocks_;  // of the host and of each stream; events share the host's
  std::vector<std::string> names_{"host"};
  Ranges ranges_;  // disjoint, keyed by their begin
  std::vector<Violation> violations_;
};

}  // namespace mica
