// SPDX-License-Identifier: Apache-2.0
#include "mica/core/unique_fd.hpp"

#include <unistd.h>

namespace mica {

void FdTraits::close(type fd) noexcept { ::close(fd); }

}  // namespace mica
