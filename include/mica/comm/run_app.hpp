// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "mica/comm/host_comm.hpp"
#include "mica/core/error.hpp"
#include "mica/mpi/communicator.hpp"
#include "mica/mpi/session.hpp"

namespace mica {

/// The environment of an MPI program.
struct App {
  mpi::Session& session;
  mpi::Communicator& world;
  const HostComm& comm;                ///< of the same ranks: set-up, saving and loading fail on all of them at once
  std::vector<std::string> arguments;  ///< without the program's name
  std::string& log_file;               ///< a fatal error is appended to it as well; empty: there is none yet
};

/// The main of a program on many ranks: starts MPI, runs `body`, ends the job. [Note: the end of a job] An error becomes one
/// line "mica: error: ..." of the whole job, and the exit status of its type (ExitCode) on every rank. One that all ranks
/// share ([Note: agreement]) ends in order. So does one that all throw by themselves within a second: each has come to the
/// end of `body`, and the lowest rank's is told. Any other ends the whole job at once (MPI_Abort), since the other ranks
/// wait for this one, and its line says which rank's it is.
/// @code
///   mica::ExitCode train(mica::App& app) { ... return mica::ExitCode::done; }
///   int main(int argc, char** argv) { return mica::run_app(argc, argv, train); }
/// @endcode
int run_app(int argc, char** argv, const std::function<ExitCode(App&)>& body);

/// Ends the whole job at once (MPI_Abort) with the error's line and status: the other ranks wait for this one and cannot be
/// asked. Where several ranks fail at once, the lowest one speaks.
/// @param log_file  App::log_file
[[noreturn]] void abort_job(const std::exception& error, int rank, int num_ranks, const std::string& log_file);

}  // namespace mica
