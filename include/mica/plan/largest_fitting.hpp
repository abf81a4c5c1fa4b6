// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace mica::plan {

/// The largest size in [1, most] whose peak is at most the capacity; 0 if there is none. Asks for few peaks, since each is a dry run: about
/// four where memory grows linearly with the size, and at most 2 log2(most) + 3 however it grows.
/// @param peak_of  the peak in bytes, which never falls as the size grows
[[nodiscard]] std::int64_t largest_fitting(const std::function<std::int64_t(std::int64_t size)>& peak_of, std::int64_t capacity,
                                           std::int64_t most);

}  // namespace mica::plan
