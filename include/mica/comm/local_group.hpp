#pragma once

#include <functional>
#include <memory>

#include "mica/comm/process_group.hpp"

namespace mica {

/// N ranks as threads of one process: real collectives through shared memory, for fast tests.
/// A rank that throws ends all: the others' next or pending collective throws an Error naming that rank.
/// @param body  run on N threads with that rank's world group.  @throws the lowest failing rank's own exception.
void run_local_ranks(int num_ranks, const std::function<void(std::unique_ptr<ProcessGroup>)>& body);

}  // namespace mica
