// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "mica/mpi/communicator.hpp"
#include "mica/train/setup.hpp"

namespace mica::train {

/// Whether all parameters of all units are finite on all ranks, and so are their squares in fp32. One pass over the masters.
/// @collective. The host waits.
[[nodiscard]] bool has_finite_parameters(const fsdp::Root& root, const mpi::Communicator& world);

/// Names the unit with the first values that are not finite, on any rank. Looks at parameters first; then at inputs and outputs of units,
/// in the order of forward and backward; then at gradients. Values whose squares overflow fp32 count as infinite. "root" is what is outside
/// all other units: embedding, last norm, head and loss.
/// @param repeat_passes  runs the step's forwards and backwards again, with the same values. Gradients are gone afterwards.
/// @returns "unit transformer.h.3: its output in forward". @collective. The host waits.
[[nodiscard]] std::string first_bad_unit(ShardedModel& model, const mpi::Communicator& world, const std::function<void()>& repeat_passes);

/// The unit with the largest gradient: "unit transformer.h.3: the largest gradient". @collective. The host waits.
[[nodiscard]] std::string unit_of_largest_gradient(ShardedModel& model, const mpi::Communicator& world);

}  // namespace mica::train
