#pragma once

#include <functional>
#include <string>
#include <vector>

#include "mica/comm/process_group.hpp"

namespace mica {

// Host-side agreement for set-up, state dicts and loading, never inside a step (DESIGN section 5).
// Both: @collective over the group, in the same order on all ranks; the stream is synchronised.

/// Every rank's text (any bytes), in rank order, on every rank.
[[nodiscard]] std::vector<std::string> gather_strings(ProcessGroup& group, Stream& stream, const char* label,
                                                      const std::string& mine);

/// Runs rank-local work before a collective. Had it failed on any rank, every rank throws the lowest failing rank's error
/// (a ConfigError stays one), with "rank N: " before its text when there are several ranks. So no rank waits for another
/// one that has given up.
void agree(ProcessGroup& group, Stream& stream, const char* label, const std::function<void()>& action);

}  // namespace mica
