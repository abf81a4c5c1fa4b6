#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mica/comm/process_group.hpp"

namespace mica {

// Host-side agreement for set-up, state dicts and loading, never inside a step but for checks of the first (DESIGN
// section 5). All: @collective over the group, in the same order on all ranks; the stream is synchronised.

/// What every rank has to say, by rank: equal counts of numbers. One all-gather. (In a group that moves nothing all
/// agree.)
[[nodiscard]] std::vector<std::vector<std::int64_t>> gather_numbers(ProcessGroup& group, Stream& stream,
                                                                    const char* label,
                                                                    const std::vector<std::int64_t>& mine);

/// Every rank's text (any bytes), in rank order, on every rank.
[[nodiscard]] std::vector<std::string> gather_strings(ProcessGroup& group, Stream& stream, const char* label,
                                                      const std::string& mine);

/// Runs rank-local work before a collective. Had it failed on any rank, every rank throws the lowest failing rank's
/// error of its type, with "rank N: " before its text when there are several ranks. So no rank waits for another one
/// that has given up.
void agree(ProcessGroup& group, Stream& stream, const char* label, const std::function<void()>& action);

}  // namespace mica
