// SPDX-License-Identifier: Apache-2.0
#include "../gpu_clock.hpp"

#include "mica/core/error.hpp"

namespace mica::detail {

std::unique_ptr<StreamClock> make_gpu_clock(Stream&) { throw ConfigError("a GPU's stream is traced, but this build has no CUDA"); }

}  // namespace mica::detail
