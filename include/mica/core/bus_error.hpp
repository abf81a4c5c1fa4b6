// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace mica {

/// Copies from a mapped file. @returns false if a page of it cannot be read: the file became shorter, or its disk or file server failed.
[[nodiscard]] bool copy_pages(std::span<std::byte> out, const std::byte* from);

/// From now on, a page of a mapped file that cannot be read (SIGBUS) ends this process, unless copy_pages() reads it: one line on standard
/// error names the file, and the status is ExitCode::runtime_failure. For other bus errors, such as shared memory for which none is left,
/// the line comes first and then the handler that was there before.
/// @param who  "rank 3: ", or empty
void tell_bus_errors(std::string_view who);

}  // namespace mica
