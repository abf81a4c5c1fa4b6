// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace mica {

/// Opens a folder and closes it, before a look for a name in it that another node may just have made. This makes an NFS client ask the
/// server what is there: a client that has not found a name may go on saying so for half a minute. @returns 0 or errno
int open_folder(const std::string& folder);

}  // namespace mica
