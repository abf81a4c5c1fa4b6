// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/device/stream.hpp"

namespace mica::detail {

/// Pool::last_use() where events cost something: on a GPU's stream it is a promise, since most freed memory is used again
/// on the same stream, where nobody asks for an event. It is recorded at the next record(), before the stream waits for
/// another one, when somebody asks for it or after a few more tasks, whichever comes first: for whoever waits it may come
/// that much later, and depends on the host's order of calls alone as any event.
[[nodiscard]] Event record_last_use(Stream& stream);

}  // namespace mica::detail
