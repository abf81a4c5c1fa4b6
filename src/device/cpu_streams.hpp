// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "mica/device/stream.hpp"

namespace mica::detail {

[[nodiscard]] std::unique_ptr<Stream> make_inline_stream(std::string name);
[[nodiscard]] std::unique_ptr<Stream> make_threaded_stream(std::string name);

}  // namespace mica::detail
