// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "mica/device/pool.hpp"

namespace mica::detail {

/// make_dry_pool() for a GPU.
[[nodiscard]] std::unique_ptr<Pool> make_dry_gpu_pool();

}  // namespace mica::detail
