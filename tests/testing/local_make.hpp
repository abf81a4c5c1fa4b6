// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "mica/comm/process_group.hpp"

#include "testing/local_shared.hpp"

namespace mica {

/// One rank's handle of a local group.
[[nodiscard]] std::unique_ptr<ProcessGroup> make_local_group(std::shared_ptr<LocalWorld> world, std::shared_ptr<LocalShared> shared,
                                                             int rank, std::string name);

}  // namespace mica
