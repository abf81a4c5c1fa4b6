#pragma once

#include <vector>

#include "mica/device/event.hpp"
#include "mica/device/stream.hpp"

namespace mica::detail {

// When earlier owners are done with memory: part of [Note: memory and streams].

/// Adds an event to what a block waits for; of two events of one stream only the later one matters.
void merge_event(std::vector<Event>& pending, const Event& event);

/// The host waits until all of them have happened. Failed streams are no matter: their owners hear of the errors.
void wait_until_over(const std::vector<Event>& pending);

/// A stream on which events cost something. What it gives for memory that is freed is a promise: most freed memory is used
/// again on the same stream, where nobody asks for an event.
class RecordsLastUses {
 public:
  virtual ~RecordsLastUses() = default;
  RecordsLastUses(const RecordsLastUses&) = delete;
  RecordsLastUses& operator=(const RecordsLastUses&) = delete;

  /// An event for all that was enqueued so far. It is recorded at the next record(), before the stream waits for another one,
  /// when somebody asks for it or after a few more tasks, whichever comes first: for whoever waits it may come that much
  /// later, and depends on the host's order of calls alone as any event.
  [[nodiscard]] virtual Event record_last_use() = 0;

 protected:
  RecordsLastUses() = default;
};

/// The event after which memory that `stream` uses is free; all that was enqueued so far is before it.
[[nodiscard]] Event record_last_use(Stream& stream);

}  // namespace mica::detail
