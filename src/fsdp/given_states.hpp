// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/fsdp/unit.hpp"

namespace mica::fsdp {

class BufferStorage;

/// Data that parameters had before initialize() must be where the unit computes; with `move_to_device` it may be in
/// host memory too (docs/parity.md B6, C6).
/// @throws ConfigError naming a parameter, its device and the expected one, or two parameters on two devices.
void check_devices(const Unit& unit, bool move_to_device);

/// The same for buffers.
void check_devices(const BufferStorage& buffers, bool move_to_device);

}  // namespace mica::fsdp
