// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "mica/fsdp/state_arrays.hpp"
#include "mica/optim/optimizer.hpp"

namespace mica::optim {

/// One kind of state of all parameters that have state by now, by full name. Ignored parameters are whole.
[[nodiscard]] fsdp::StateArrays arrays_of(const Optimizer& optimizer, std::string_view kind);

/// The place of every parameter's state, whether it has any or not: arrays without data, by full name.
using Parameters = std::map<std::string, fsdp::StateArray>;
[[nodiscard]] Parameters parameters_of(const Optimizer& optimizer);

/// This rank's piece of a whole array, [piece.numel()] in host memory. Enqueued on the compute stream.
[[nodiscard]] fsdp::StateTensor part_of(const fsdp::StateTensor& whole, const fsdp::Piece& piece, fsdp::DeviceMesh& device_mesh);
/// The same of all kinds of one parameter; none if it has no piece here. The host waits.
[[nodiscard]] fsdp::StateDict parts_of(const fsdp::StateDict& whole, const fsdp::StateArray& parameter, fsdp::DeviceMesh& device_mesh);

}  // namespace mica::optim
