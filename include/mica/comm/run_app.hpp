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
  const HostComm& comm;                ///< of the same ranks: set-up, saving and loading fail on all of them at once
  std::vector<std::string> arguments;  ///< without the program's name
  std::string& log_file;               ///< a fatal error is appended to it as well; empty: there is none yet
  const mpi::Communicator& failing;    ///< of the same ranks, for share_or_abort() alone
  Watchdog& watchdog;                  ///< looks after all that communicates within `body`
};

/// The main of a program on many ranks: starts MPI, refuses launches that went wrong (each process a world of its own, hosts that cannot
/// reach each other, another program on a rank: mica/launch), runs `body` with a watchdog beside it ([Note: watchdog]), ends the job.
/// [Note: the end of a job] An error becomes one
/// line "mica: error: ..." of the whole job, and the exit status of its type (ExitCode) on every rank. One that all ranks
/// share ([Note: agreement]) ends in order. So does one that all throw by themselves within a second: each has come to the
/// end of `body`, and the lowest rank's is told. Any other ends the whole job at once (MPI_Abort), since the other ranks
/// wait for this one, and its line says which rank's it is.
/// @code
///   mica::ExitCode train(mica::App& app) { ... return mica::ExitCode::done; }
///   int main(int argc, char** argv) { return mica::run_app(argc, argv, train); }
/// @endcode
int run_app(int argc, char** argv, const std::function<ExitCode(App&)>& body);

/// To be called where the error is caught, and where what is destroyed next would wait for other ranks: throws it on if all ranks
/// throw ([Note: the end of a job]), as one that they share; ends the job otherwise.
[[noreturn]] void share_or_abort(const std::exception& error, const App& app);

}  // namespace mica
