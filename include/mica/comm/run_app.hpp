// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "mica/comm/host_comm.hpp"
#include "mica/comm/watchdog.hpp"
#include "mica/core/error.hpp"
#include "mica/mpi/communicator.hpp"
#include "mica/mpi/session.hpp"

namespace mica {

/// The environment of an MPI program.
struct App {
  mpi::Session& session;
  mpi::Communicator& world;
  const HostComm& comm;                ///< of the same ranks, for set-up, saving and loading: errors are thrown on all of them
  std::vector<std::string> arguments;  ///< without the program's name
  std::string& log_file;               ///< a fatal error is also appended to this file; empty: no file
  const mpi::Communicator& failing;    ///< of the same ranks, only for share_or_abort()
  Watchdog& watchdog;                  ///< watches all communication within `body`
};

/// The main function of an MPI program: starts MPI, refuses broken launches (every process a world of its own, hosts that cannot
/// reach each other, a different program on one rank: mica/launch), runs `body` under a watchdog ([Note: watchdog]), ends the job.
/// [Note: the end of a job] An error is printed once for the whole job, as one line "mica: error: ...", and every rank exits with
/// the status of its type (ExitCode). After an error that all ranks share ([Note: agreement]) MPI is finalized. So it is if all
/// ranks throw errors of their own within a second: all have left `body`, and the lowest rank's error is printed. Any other
/// error aborts the job at once (MPI_Abort), because the other ranks wait for this one; its line names the rank. Ranks that have
/// left `body` wait for the others in a barrier, for no longer than the watchdog's timeout.
/// @code
///   mica::ExitCode train(mica::App& app) { ... return mica::ExitCode::done; }
///   int main(int argc, char** argv) { return mica::run_app(argc, argv, train); }
/// @endcode
int run_app(int argc, char** argv, const std::function<ExitCode(App&)>& body);

/// Call it in the catch block, before destructors that would wait for other ranks: if all ranks throw ([Note: the end of a job]),
/// throws the error as one that they share; aborts the job otherwise.
[[noreturn]] void share_or_abort(const std::exception& error, const App& app);

}  // namespace mica
