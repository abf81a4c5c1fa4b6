#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mica/comm/host_comm.hpp"
#include "mica/core/error.hpp"
#include "mica/core/log.hpp"
#include "mica/mpi/communicator.hpp"
#include "mica/mpi/session.hpp"

namespace mica::train {

/// Ends the whole job at once (MPI_Abort) with the error's line and status: the other ranks wait for this one and cannot be
/// asked. Where several ranks fail at once, the lowest one speaks.
/// @param log_file  App::log_file
[[noreturn]] void abort_job(const std::exception& error, int rank, int num_ranks, const std::string& log_file);

/// What a program on many ranks runs in.
struct App {
  mpi::Session& session;
  mpi::Communicator& world;
  const HostComm& comm;  ///< of the same ranks: set-up, saving and loading fail on all of them at once
  std::vector<std::string> arguments;
  std::string& log_file;  ///< a fatal error is appended to it as well; empty: there is none yet
};

/// The frame of every MPI program: starts MPI, runs `body`, ends the job. An error becomes one line "mica: error: ..." and
/// an exit status (docs/design.md, Programs and files) on every rank. One that all ranks share ends the job in order
/// ([Note: agreement]); any other ends it at once (MPI_Abort), since the other ranks wait for this one.
int run_app(int argc, char** argv, const std::function<ExitCode(App&)>& body);

}  // namespace mica::train
