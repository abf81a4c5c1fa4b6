// SPDX-License-Identifier: Apache-2.0
// Rank 1 is killed while the others wait for what it was to write into memory that they share.
#include <csignal>
#include <cstdio>
#include <cstring>

#include <unistd.h>

#include "mica/comm/mpi_group.hpp"
#include "mica/mpi/session.hpp"

int main(int argc, char** argv) {
  const bool for_written = argc > 1 && std::strcmp(argv[1], "written") == 0;
  mica::mpi::Session session(&argc, &argv);
  const auto world = mica::mpi::Communicator::world();
  const auto pool = mica::make_cpu_pool();
  const auto group = mica::make_mpi_group(world.duplicate(), *pool, "shard", {.shares_memory = true});
  const auto stream = mica::make_cpu_stream("compute", mica::StreamMode::inlined);
  const mica::SharedParts parts = group->allocate_parts(*pool, 1'000'000, mica::DType::f32, mica::MemoryRole::sharded_param, *stream);
  std::printf("rank %d is %d, shared: %d\n", world.rank(), static_cast<int>(getpid()), parts.is_shared() ? 1 : 0);
  std::fflush(stdout);
  world.barrier();
  if (world.rank() == 1) {
    std::raise(SIGKILL);
  }
  parts.publish(*stream, 1);
  if (for_written) group->wait_for_written(*stream, "h.0", parts, 1);
  parts.release(*stream, 1);
  group->wait_for_released(*stream, "h.0", parts, 1);
  std::printf("rank %d came out of the wait\n", world.rank());
  return 0;
}
