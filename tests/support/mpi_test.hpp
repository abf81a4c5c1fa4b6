// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "mica/mpi/session.hpp"

namespace mica::testing {

/// The session that mpi_main.cpp opened.
[[nodiscard]] const mpi::Session& session();

}  // namespace mica::testing
