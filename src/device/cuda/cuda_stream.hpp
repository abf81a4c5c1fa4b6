// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/device/stream.hpp"

namespace mica::detail {

/// Pool::last_use() for a GPU's stream, where events have a cost: the event is recorded lazily, since most freed memory is
/// reused on the same stream, which needs no event. It is recorded at the next record(), before the stream waits for another
/// one, when it is queried or waited for, or after a few more tasks, whichever comes first. A waiter may wait that much
/// longer; like every event it depends only on the host's order of calls.
[[nodiscard]] Event record_last_use(Stream& stream);

}  // namespace mica::detail
