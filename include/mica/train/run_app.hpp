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

/// Ends the whole job at once (MPI_Abort) with the error's line and status, since the other ranks wait for this one and cannot
/// be reached. If several ranks fail at once, the lowest one prints.
/// @param log_file  App::log_file
[[noreturn]] void abort_job(const std::exception& error, int rank, int num_ranks, const std::string& log_file);

/// The environment of an MPI program.
struct App {
  mpi::Session& session;
  mpi::Communicator& world;
  const HostComm& comm;  ///< over the same ranks, so that set-up, saving and loading fail on all of them at once
  std::vector<std::string> arguments;
  std::string& log_file;  ///< a fatal error is also appended to it; empty: none yet
};

/// The main function of every MPI program: starts MPI, runs `body`, ends the job. An error becomes one line "mica: error: ..."
/// and an exit status (docs/design.md, Programs and files) on every rank. An error that all ranks share ends the job normally
/// ([Note: agreement]); any other ends it at once (MPI_Abort), since the other ranks wait for this one.
int run_app(int argc, char** argv, const std::function<ExitCode(App&)>& body);

}  // namespace mica::train
