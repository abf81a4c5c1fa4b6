// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/core/unique_handle.hpp"

namespace mica {

struct FdTraits {
  using type = int;
  static type null() { return -1; }
  static void close(type fd) noexcept;
};
/// A file descriptor: of a file, shared memory or a socket.
using UniqueFd = UniqueHandle<FdTraits>;

}  // namespace mica
