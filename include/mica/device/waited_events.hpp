// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "mica/device/event.hpp"

namespace mica::detail {

/// What a stream has waited for: the latest event of each other stream. Lets it skip redundant waits.
class WaitedEvents {
 public:
  /// Whether a stream, whose own events have the origin `self`, is already ordered after the event, because the event is its
  /// own or it waited for this or a later one of that stream. If not, it counts as waited for from now on.
  bool is_known(const Event& event, const void* self) {
    const void* origin = event.state()->origin();
    if (origin == nullptr) return false;
    if (origin == self) return true;
    for (Event& known : latest_) {
      if (known.state()->origin() != origin) continue;
      if (known.state()->sequence() >= event.state()->sequence()) return true;
      known = event;
      return false;
    }
    latest_.push_back(event);
    return false;
  }

 private:
  std::vector<Event> latest_;  // of each stream; an event keeps its origin's address from being used again
};

}  // namespace mica::detail
