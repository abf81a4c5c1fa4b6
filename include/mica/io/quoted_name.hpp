// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace mica::io {

/// A name from a file, fit for a one-line error text: in quotes, control characters escaped, cut where it is very long.
[[nodiscard]] std::string quoted_name(std::string_view name);

}  // namespace mica::io
