#pragma once

#include <cstdint>
#include <vector>

#include "mica/fsdp/device_mesh.hpp"

namespace mica::fsdp {

/// What every rank has to say, by rank: equal counts of numbers. The host waits; for checks of a first step.
/// @collective over the world
[[nodiscard]] std::vector<std::vector<std::int64_t>> numbers_of_all_ranks(DeviceMesh& device_mesh,
                                                                          const std::vector<std::int64_t>& mine);

}  // namespace mica::fsdp
