// SPDX-License-Identifier: Apache-2.0
// Rank 1 throws with an open Session while the others wait for it in a barrier.
#include <cstdio>
#include <stdexcept>

#include "mica/mpi/communicator.hpp"
#include "mica/mpi/session.hpp"

int main(int argc, char** argv) {
  try {
    const mica::mpi::Session session(&argc, &argv);
    const auto world = mica::mpi::Communicator::world();
    std::setvbuf(stdout, nullptr, _IOFBF, 1 << 16);
    if (world.rank() == 1) {
      std::printf("written by rank 1 before its end\n");
      throw std::runtime_error("rank 1 gives up");
    }
    world.barrier();
    std::printf("rank %d came out of the barrier\n", world.rank());
  } catch (const std::exception&) {
    return 9;  // not reached: the session aborts while unwinding
  }
  return 0;
}
