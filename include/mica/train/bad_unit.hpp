// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "mica/mpi/communicator.hpp"
#include "mica/train/setup.hpp"

namespace mica::train {

/// Names the unit whose values were the first that are not finite, on any rank: parameters first; else what went into and came
/// out of units in forward and backward, in that order; else gradients. Values whose squares fp32 cannot hold count as
/// infinite. "root" is what is outside all other units: embedding, last norm, head and loss.
/// @param repeat_passes  runs the step's forwards and backwards again, with the same values. Gradients are gone afterwards.
/// @returns "unit transformer.h.3: its output in forward". @collective. The host waits.
[[nodiscard]] std::string first_bad_unit(ShardedModel& model, const mpi::Communicator& world, const std::function<void()>& repeat_passes);

/// The unit with the largest gradient: "unit transformer.h.3: the largest gradient". @collective. The host waits.
[[nodiscard]] std::string unit_of_largest_gradient(ShardedModel& model, const mpi::Communicator& world);

}  // namespace mica::train
