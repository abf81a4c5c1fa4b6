// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "mica/device/event.hpp"

namespace mica::detail {

// Waits for earlier owners of memory: part of [Note: memory and streams].

/// Adds an event to what a block waits for; of two events of one stream only the later one matters.
void merge_event(std::vector<Event>& pending, const Event& event);

/// The host waits until all events are complete. Errors of failed streams are ignored: the streams' owners get them.
void wait_until_over(const std::vector<Event>& pending);

}  // namespace mica::detail
