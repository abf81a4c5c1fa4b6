#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mica/core/error.hpp"
#include "mica/core/log.hpp"
#include "mica/mpi/communicator.hpp"
#include "mica/mpi/session.hpp"

namespace mica::train {

/// An error that every rank knows of: all throw it together, so that the job can end in order.
class SharedError : public Error {
 public:
  SharedError(const std::string& text, ExitCode code) : Error(text), code_(code) {}
  [[nodiscard]] ExitCode exit_code() const noexcept override { return code_; }

 private:
  ExitCode code_;
};

/// Runs rank-local work of set-up, saving or loading; if it throws on any rank, every rank throws a SharedError with the
/// lowest failing rank's text (and its rank, unless all failed alike). @collective
void together(const mpi::Communicator& world, const std::function<void()>& work);
/// Runs work on rank 0 alone. @returns its text, on every rank; if it throws, every rank throws a SharedError. @collective
std::string from_rank_0(const mpi::Communicator& world, const std::function<std::string()>& work);

/// Ends the whole job at once (MPI_Abort) with the error's line and status: the other ranks wait for this one and cannot be
/// asked. Where several ranks fail at once, the lowest one speaks.
/// @param log_file  App::log_file
[[noreturn]] void abort_job(const std::exception& error, int rank, int num_ranks, const std::string& log_file);

/// What a program on many ranks runs in.
struct App {
  mpi::Session& session;
  mpi::Communicator& world;
  std::vector<std::string> arguments;
  std::string& log_file;  ///< a fatal error is appended to it as well; empty: there is none yet
};

/// The frame of every MPI program: starts MPI, runs `body`, ends the job. Errors become one line "mica: error: ..." and
/// the exit status of DESIGN section 9 on every rank: a SharedError ends in order; any other error ends the whole job at
/// once (MPI_Abort), since the other ranks wait for this one.
int run_app(int argc, char** argv, const std::function<ExitCode(App&)>& body);

}  // namespace mica::train
