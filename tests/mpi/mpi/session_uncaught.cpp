// SPDX-License-Identifier: Apache-2.0
// A program that catches nothing: every rank throws with an open Session.
#include "mica/core/error.hpp"
#include "mica/mpi/communicator.hpp"
#include "mica/mpi/session.hpp"

int main(int argc, char** argv) {
  mica::mpi::Session session(&argc, &argv);
  const auto world = mica::mpi::Communicator::world();
  throw mica::ConfigError("a mistake of rank " + std::to_string(world.rank()));
}
