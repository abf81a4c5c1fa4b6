// SPDX-License-Identifier: Apache-2.0
#include "last_uses.hpp"

namespace mica::detail {

void merge_event(std::vector<Event>& pending, const Event& event) {
  if (!event.state()) return;
  const void* origin = event.state()->origin();
  for (Event& known : pending) {
    if (known.state() == event.state()) return;
    if (origin == nullptr || known.state()->origin() != origin) continue;
    if (known.state()->sequence() < event.state()->sequence()) known = event;
    return;
  }
  pending.push_back(event);
}

void wait_until_over(const std::vector<Event>& pending) {
  for (const Event& event : pending) {
    try {
      event.wait_on_host();
    } catch (...) {  // completion is enough here; the stream's owner gets the error
    }
  }
}

}  // namespace mica::detail
