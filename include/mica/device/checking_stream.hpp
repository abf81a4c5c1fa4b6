#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mica/device/stream.hpp"

namespace mica {

/// One counter per stream, index 0 is the host. a <= b: everything in a happened before b.
class VectorClock {
 public:
  [[nodiscard]] std::uint64_t of(std::size_t stream) const { return stream < ticks_.size() ? ticks_[stream] : 0; }
  void set(std::size_t stream, std::uint64_t tick);
  void join(const VectorClock& other);

 private:
  std::vector<std::uint64_t> ticks_;
};

/// Finds buffer accesses of two streams (or of a stream and the host) that no record()/wait() pair orders.
/// Order is a property of what was enqueued, so a race is found on every run, whatever the timing, also with inline
/// streams. [Note: checking stream]
/// Use: wrap every stream of a rank with wrap(); violations() must be empty afterwards.
class HappensBeforeChecker {
 public:
  struct Violation {
    std::string text;  ///< "unshard:all_gather writes [0x..,+64) while compute:linear may still read it: no event orders them"
  };

  /// A stream that checks and forwards to `inner`, which it owns.
  [[nodiscard]] std::unique_ptr<Stream> wrap(std::unique_ptr<Stream> inner);
  /// The host itself is about to touch memory.
  void host_access(const char* what, Access access);
  /// The host has waited for `event`: what came before it is ordered before the host's next steps.
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
  void access(std::size_t stream, const std::string& what, const Access& access);
  void split_at(std::uintptr_t address);

  std::vector<VectorClock> clocks_{1};
  std::vector<std::string> names_{"host"};
  std::map<std::uintptr_t, Range> ranges_;  // disjoint, keyed by their begin
  std::vector<Violation> violations_;
};

}  // namespace mica
